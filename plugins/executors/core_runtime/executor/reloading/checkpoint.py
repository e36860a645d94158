"""An opened model on disk: its loader, the names of its tensors, and its shape.

Owns: `Checkpoint`, and how a configuration becomes one. Never does: read a tensor. Called by: the worker, and commands that
convert checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import torch

from core.api.config import EngineConfig
from core.plugin.table import PluginTable
from core_runtime.contracts import HasRow, Loader, ModelFamily
from core_runtime.executor.plugin_loading import load_plugin
from core_runtime.models.adapters.places import NamesOf
from core_runtime.models.families import decoder_spec, plugin_names, plugin_spec, weight_map, without_head
from core_runtime.models.tensors.prepared import HasPrepared, MadeFor, PreparedWeights
from core_runtime.models.tensors.weight_map import WeightMap
from core_runtime.specs.checkpoint import CheckpointManifest, TensorInfo
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.draft_config import draft_of
from core_runtime.specs.module_spec import ModelSpec

if TYPE_CHECKING:
    from core_runtime.models.fallback.shape import Shaped


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An opened model on disk; its tensors are not read yet.

    loader: reads the tensors.
    manifest: the tensors, under canonical names.
    spec: shape of the model.
    shaped: the modules without weights, for a model that runs on modules of transformers.
    prepared: prepared kernels, if they were saved.
    names: map from the names in the files to canonical ones; None for modules of transformers.
    names_of: the same map for changes of modules, as an adapter has them.
    """

    loader: Loader
    manifest: CheckpointManifest
    spec: ModelSpec
    shaped: Shaped | None = None
    prepared: PreparedWeights | None = None
    names: WeightMap | None = None
    names_of: NamesOf | None = None


def open_checkpoint(
    config: EngineConfig,
    plugins: PluginTable,
    activation_dtype: torch.dtype = torch.float32,
    wrap: Callable[[Loader], Loader] | None = None,
) -> Checkpoint:
    """Open the configured checkpoint; no tensor is read yet.

    activation_dtype: dtype of tensors between layers.
    wrap: wraps the checkpoint's own loader, below canonical names.
    """
    plain: Loader = load_plugin(config, plugins, "loader", config.plugins.loader)
    loader = plain if wrap is None else wrap(plain)
    manifest = loader.resolve(config.model.model)
    prepared = plain.prepared(manifest) if isinstance(plain, HasPrepared) else None
    if prepared is not None:
        prepared.check(made_for(config))
    if config.model.implementation == "transformers":
        return _open_modules(config, loader, manifest, activation_dtype)
    opened = _open_decoder(config, plugins, loader, manifest, prepared)
    draft = draft_of(config)
    if draft is None:
        return opened
    assert isinstance(opened.spec, DecoderSpec), "the layers are the engine's own"
    # The target must store the hidden states that its draft reads.
    spec = msgspec.structs.replace(opened.spec, taps=draft.spec.taps)
    return replace(opened, spec=spec)


def _open_decoder(
    config: EngineConfig,
    plugins: PluginTable,
    loader: Loader,
    manifest: CheckpointManifest,
    prepared: PreparedWeights | None,
) -> Checkpoint:
    """Open a checkpoint that the engine's own layers run."""
    name = config.plugins.model
    hf_config = config.model.hf_config
    overridden = msgspec.structs.replace(manifest, config=hf_config)
    if name is None:
        spec = decoder_spec(hf_config)
        names_in = partial(weight_map, spec=spec)
        modules_in = partial(weight_map, spec=spec, of_modules=True)
    else:
        facts = manifest.facts()
        family: ModelFamily | HasRow = load_plugin(config, plugins, "model", name, facts=facts, manifest=manifest)
        spec = plugin_spec(family, hf_config)
        names_in = modules_in = partial(plugin_names, family, spec=spec)
    names = names_in(overridden)

    def names_of(tensors: dict[str, TensorInfo]) -> WeightMap:
        return modules_in(msgspec.structs.replace(overridden, tensors=tensors))

    if config.model.pooling is not None:
        spec = without_head(spec, names.manifest)
    return Checkpoint(names.loader(loader), names.manifest, spec, prepared=prepared, names=names, names_of=names_of)


def _open_modules(
    config: EngineConfig, loader: Loader, manifest: CheckpointManifest, activation_dtype: torch.dtype
) -> Checkpoint:
    """Open a checkpoint that modules of transformers run."""
    # Imported late: most models do not need transformers.
    from core_runtime.models.fallback.shape import shaped_model

    hf_config = config.model.hf_config
    has_code = config.model.trust_remote_code and "auto_map" in hf_config
    directory = config.model.model if has_code else None
    shaped = shaped_model(hf_config, manifest.tensors, activation_dtype, directory)
    return Checkpoint(loader, shaped.spec.canonical(manifest), shaped.spec, shaped)


def made_for(config: EngineConfig) -> MadeFor:
    """Return the settings that prepared kernels depend on."""
    method = config.plugins.quantization
    arguments = config.plugins.arguments.get(f"quantization.{method}", {})
    return MadeFor(config.model.dtype, config.model.numerics, method, arguments)
