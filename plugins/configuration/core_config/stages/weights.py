"""Bytes of the weights, planned with the chosen quantization method, kernels and proposer before a weight is read.

Owns: loading the method for its `plan`, and the queries to kernels (how they pack) and proposer (what it stores). Never
does: read a weight.
Called by: resolve.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from core.api.errors import ConfigError
from core.api.specs import LayerSpec
from core.args.plugin_arguments import convert_struct
from core.plugin.capabilities import roundings_of
from core.plugin.hookspecs import LoadContext
from core.plugin.table import load_plugin
from core_config.plugin_choices import speculative_arguments
from core_config.stages.chosen import Chosen
from core_config.stages.memory import ITEM_BYTES, Plan, group_bytes, weights_bytes
from core_config.stages.settings import Settings
from core_runtime.contracts import QuantizationMethod
from core_runtime.models.tensors.tensor_check import check_tensors
from core_runtime.specs.checkpoint import CheckpointManifest
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.module_spec import ModelSpec


def planned_weights(settings: Settings, chosen: Chosen, manifest: CheckpointManifest, spec: ModelSpec) -> int:
    """Return the bytes of all matrices as they will be stored.

    Raises ConfigError when the checkpoint's tensors do not fit the model, UserError or PluginError when a part cannot
    be served.
    """
    multiple = _row_multiple(chosen)
    plan = quantization_plan(settings, chosen, manifest)
    total = weights_bytes(spec, plan, settings["dtype"], multiple)
    if isinstance(spec, DecoderSpec) and (plan is not None or _is_plain(chosen)):
        problems = check_tensors(manifest, spec, plan).problems(manifest.ref, spec)
        if problems:
            raise ConfigError(problems)
    return total


def counter_of(
    settings: Settings, chosen: Chosen, manifest: CheckpointManifest
) -> Callable[[Sequence[LayerSpec]], int]:
    """Return a function for the bytes of parts that may become one kernel. It raises UserError as `planned_weights` does."""
    plan = quantization_plan(settings, chosen, manifest)
    multiple = _row_multiple(chosen)

    def count(parts: Sequence[LayerSpec]) -> int:
        # halves of a latent's matrix have three axes, and are plain whatever the checkpoint's format
        return group_bytes(parts, None if len(parts[0].shape) > 2 else plan, settings["dtype"], multiple)

    return count


def _row_multiple(chosen: Chosen) -> Callable[[str], int]:
    kernels = chosen.stages.get("kernels")
    providers = [] if kernels is None else [manifest.spec.capabilities for manifest in kernels.manifests]

    def multiple(form: str) -> int:
        """Return the padding multiple of the first provider that serves the format; the reference operations pad
        nothing.
        """
        for capabilities in providers:
            if "formats" not in capabilities or form in capabilities["formats"]:
                return int(capabilities.get("row_multiple", 1))
        return 1

    return multiple


def proposer_weights(settings: Settings, chosen: Chosen, manifest: CheckpointManifest) -> int:
    """Return the bytes of the proposer's own weights.

    They are 0 when the proposer reports none, or when its arguments are wrong (which is reported elsewhere). Raises
    UserError or PluginError.
    """
    stage = chosen.stages.get("speculative")
    if stage is None or not stage.manifests:
        return 0
    plugin = stage.manifest
    given = speculative_arguments(settings, chosen)
    values, problems = convert_struct(plugin.spec.arguments, given, "")
    if problems:
        return 0
    told = plugin.call("core_weights_nbytes", arguments=values, facts=manifest.facts())
    return int(told or 0)


def heads_weights(manifest: CheckpointManifest, dtype: str) -> int:
    """Return the bytes of all tensors of draft heads that a plugin computes with. dtype: dtype of plain matrices."""
    count = sum(math.prod(info.shape) for info in manifest.tensors.values())
    return count * ITEM_BYTES[dtype]


def _is_plain(chosen: Chosen) -> bool:
    """Whether no quantization method reads the checkpoint. False before that choice is made."""
    stage = chosen.stages.get("quantization")
    return stage is not None and not stage.manifests


def quantization_plan(settings: Settings, chosen: Chosen, manifest: CheckpointManifest) -> Plan | None:
    """Return the method's `plan`; None without a method, or when its arguments are wrong (which is reported
    elsewhere).
    """
    stage = chosen.stages.get("quantization")
    if stage is None or not stage.manifests:
        return None
    values = settings["quantization_config"]
    _, problems = convert_struct(stage.manifest.spec.arguments, values, "")
    if problems:
        return None
    context = LoadContext(
        device=settings["device"],
        dtype=settings["dtype"],
        arguments=values,
        facts=manifest.facts(),
        manifest=manifest,
        roundings=roundings_of(chosen.stages["platform"].manifest.spec.capabilities),
    )
    method: QuantizationMethod = load_plugin(stage.manifest, context)
    return method.plan
