"""The reader of a model's configuration: the table of families, else a plugin that claims the checkpoint, else transformers.

Owns: that stage. Never does: read weights or import torch. Called by: resolve.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from core.api.errors import CoreError, PluginError, UserError
from core.plugin.discovery import origin
from core.plugin.hookspecs import LoadContext
from core.plugin.registry import PluginRegistry
from core.plugin.table import load_plugin
from core_config.selection import select_model
from core_config.selection.ranking import Choice, losses
from core_config.stages.checkpoint import Checkpoint
from core_runtime.contracts import HasRow, ModelFamily
from core_runtime.models import families
from core_runtime.models.families.wrappers import is_wrapper, other_module
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.module_spec import ModelSpec, ModuleSpec

T = TypeVar("T")

WAY_OUT: Final = (
    "A plugin of kind `model` can add a family: `core plugins list --kind=model` shows those that are installed, "
    "`core plugins new model NAME` writes one."
)

OWN_CODE: Final = "The checkpoint brings code of its own for it (auto_map), which --trust-remote-code allows to run. "


def find_family(
    registry: PluginRegistry, checkpoint: Checkpoint, implementation: str = "auto", *, trust_remote_code: bool = False
) -> tuple[Checkpoint, ModelSpec, Choice | None]:
    """Return the checkpoint under canonical tensor names, the model's shape, and the plugin that described it.

    The plugin is None for the table, and for transformers.
    implementation: `core`: never transformers' modules; `transformers`: always; `auto`: for models that neither the
        table nor a plugin knows.
    Raises UserError for an unknown architecture, PluginError when the family's code fails.
    """
    manifest = checkpoint.manifest
    if implementation == "transformers":
        return *_modules(checkpoint, trust_remote_code), None
    try:
        families.family_for(manifest.config)
    except families.UnknownArchitecture as unknown:
        choice = select_model(registry, manifest.facts())
        if not choice.manifests:
            why = f"{unknown} {losses(choice.selection)}"
            if implementation == "core" or not _has_modules(manifest.config, trust_remote_code):
                is_untrusted = implementation != "core" and "auto_map" in manifest.config and not trust_remote_code
                raise UserError(why + (OWN_CODE if is_untrusted else "") + WAY_OUT) from None
            try:
                return *_modules(checkpoint, trust_remote_code), None
            except UserError as refusal:
                raise UserError(f"{why}{refusal} {WAY_OUT}") from None
    else:
        spec = _told(checkpoint, lambda: families.decoder_spec(manifest.config), "the table of families")
        canonical = families.weight_map(manifest, spec).manifest
        return replace(checkpoint, manifest=canonical), spec, None
    row = choice.manifest.row
    context = LoadContext(facts=manifest.facts(), manifest=manifest)
    family: ModelFamily | HasRow = load_plugin(choice.manifest, context)
    label = f"model plugin '{row.name}' ({origin(row)})"
    spec = _told(checkpoint, lambda: families.plugin_spec(family, manifest.config), label)
    if not isinstance(spec, DecoderSpec):
        raise PluginError(f"{label}: decoder_spec answered {spec!r:.60}, expected a DecoderSpec.")
    names = _told(checkpoint, lambda: families.plugin_names(family, manifest, spec), label)
    return replace(checkpoint, manifest=names.manifest), spec, choice


def text_alone(hf_config: Mapping[str, Any], tensors: Iterable[str]) -> str:
    """Return a sentence for a multimodal checkpoint, of which only the text model is served; else an empty string.

    tensors: names of the tensors in the checkpoint.
    """
    if not is_wrapper(hf_config):
        return ""
    modules: set[str] = set()
    count = 0
    for name in tensors:
        module = other_module(name)
        if module is not None:
            modules.add(module)
            count += 1
    if not count:
        return ""
    return f"text only: {count} tensors of {', '.join(sorted(modules))} are not loaded."


def _has_modules(hf_config: Mapping[str, Any], trust_remote_code: bool) -> bool:
    """Whether transformers has a class for the model."""
    from core_runtime.models.fallback.description import builds  # imported here for the reason below

    return builds(hf_config, trust_remote_code)


def _modules(checkpoint: Checkpoint, trust_remote_code: bool) -> tuple[Checkpoint, ModuleSpec]:
    """Return the checkpoint under the names of transformers' modules, and their shape."""
    manifest = checkpoint.manifest
    directory = checkpoint.path if trust_remote_code and "auto_map" in manifest.config else None
    from core_runtime.models.fallback.description import describe  # few models need it, and every start would import it

    spec = describe(manifest.config, list(manifest.tensors), directory)
    return replace(checkpoint, manifest=spec.canonical(manifest)), spec


def _told(checkpoint: Checkpoint, ask: Callable[[], T], who: str) -> T:
    """Return the answer of a family. Any exception in its code becomes a PluginError."""
    try:
        return ask()
    except PluginError as error:
        raise PluginError(f"{who}: {error}", error.plugin) from error
    except CoreError:
        raise
    except Exception as error:
        raise PluginError(
            f"model '{checkpoint.manifest.ref}': its configuration cannot be understood by {who}: {error!r}."
        ) from error
