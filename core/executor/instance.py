"""One model, ready to run: its shape, weights, mixers with their part of the cache, and forward pass.

Owns: how a checkpoint and a configuration become a model, and how models share one KV cache.
Never does: choose plugins (the configuration did), run a step. Called by: the worker, once a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import Tensor

from core.api.checkpoint import CheckpointManifest
from core.api.config import CacheConfig, EngineConfig
from core.api.decoder_spec import DecoderSpec
from core.api.model_part import Part
from core.api.module_spec import ModelSpec, ModuleSpec
from core.executor.device import Device
from core.executor.kv_memory import KVMemory, num_blocks_of
from core.kv.groups import single_group
from core.layers.kernels import KernelSet
from core.layers.rows import RowKernels
from core.layers.workspace import Workspace
from core.models.decoder import Decoder, DecoderWeights, rotary_tables
from core.models.embedding import lengthened
from core.models.families import decoder_spec, plugin_names, plugin_spec, weight_map, without_head
from core.models.kv_scales import kv_scales
from core.models.loading import WHOLE, WeightLoading
from core.models.part_store import PartStore
from core.models.prepared import HasPrepared, MadeFor, PreparedWeights, Recorder
from core.models.weight_map import WeightMap
from core.plugin.capabilities import roundings_of
from core.plugin.contracts import AttentionParams, HasRow, Loader, ModelFamily, Platform, QuantizationMethod, Runtime
from core.plugin.hookspecs import LoadContext
from core.plugin.table import PluginTable

if TYPE_CHECKING:
    from core.models.fallback.model import ModuleModel, ModuleWeights
    from core.models.fallback.shape import Shaped

Finish = Callable[[DecoderSpec, DecoderWeights], tuple[DecoderSpec, DecoderWeights]]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model on disk.

    loader: reads its tensors.
    manifest: its tensors, under canonical names.
    spec: the shape of the model.
    shaped: its modules without weights, where those of transformers run.
    prepared: its kernels, where they were saved.
    names: the way from its files' names to canonical ones; None where transformers' modules run.
    """

    loader: Loader
    manifest: CheckpointManifest
    spec: ModelSpec
    shaped: Shaped | None = None
    prepared: PreparedWeights | None = None
    names: WeightMap | None = None


@dataclass(slots=True)
class ModelInstance:
    """One model on one device.

    spec: its shape.
    model: its weights and its forward pass.
    cache: how its layers keep what they have seen.
    backends: of each layer, by its place in the model.
    learned: scales of an 8-bit cache that the checkpoint brings, by the number of a mixer.
    groups: the KV group of each layer; empty until a cache is bound.
    store: of its parts, which a model of newer weights may take over; None where transformers' modules run.
    """

    spec: ModelSpec
    model: Decoder | ModuleModel
    cache: CacheConfig
    backends: list[Any]
    learned: dict[int, AttentionParams]
    groups: list[int] = field(default_factory=list)
    store: PartStore | None = None

    @property
    def weights_nbytes(self) -> int:
        """Bytes of the prepared weights."""
        return self.model.weights.nbytes

    @property
    def attention_numerics(self) -> set[str]:
        """Names of everything that the results of its attention backends depend on."""
        return {backend.numerics for backend in self.backends}

    def layer_bytes(self) -> list[int]:
        """Bytes of one block of each layer, or of a sequence's state in it.

        Raises PluginError when a backend wants more than planned.
        """
        sizes: list[int] = []
        for mixer, backend in zip(self.model.mixers, self.backends, strict=True):
            sizes.append(mixer.layer_bytes(backend, self.cache))
        return sizes

    def bind(self, memory: KVMemory, first_layer: int) -> None:
        """Give each layer its buffer. first_layer: the number that this model's first layer has in the memory's groups."""
        self.groups = []
        layers = zip(self.model.mixers, self.backends, strict=True)
        for index, (mixer, backend) in enumerate(layers):
            layer = first_layer + index
            buffer = memory.of_layer(layer)
            scales = self.learned.get(index)
            mixer.bind_cache(backend, self.cache, buffer, scales)
            self.groups.append(memory.group_of_layer(layer))


def open_runtime(config: EngineConfig, plugins: PluginTable) -> Runtime:
    """The configured device, with its kernels."""
    choices = config.plugins
    platform: Platform = load_plugin(config, plugins, "platform", choices.platform)
    threads = {"num_threads": platform.num_threads}
    providers = [load_plugin(config, plugins, "kernels", name, options=threads) for name in choices.kernels]
    if config.model.numerics == "reference":
        providers.append(RowKernels())
    return platform.open(config.device, providers)


def open_checkpoint(
    config: EngineConfig,
    plugins: PluginTable,
    activation_dtype: torch.dtype = torch.float32,
    wrap: Callable[[Loader], Loader] | None = None,
) -> Checkpoint:
    """The configured checkpoint; no tensor is read yet.

    activation_dtype: of tensors between layers.
    wrap: puts a loader around the checkpoint's own, below canonical names.
    """
    loader: Loader = load_plugin(config, plugins, "loader", config.plugins.loader)
    if wrap is not None and not isinstance(loader, HasPrepared):
        loader = wrap(loader)
    manifest = loader.resolve(config.model.model)
    prepared = loader.prepared(manifest) if isinstance(loader, HasPrepared) else None
    if prepared is not None:
        prepared.check(made_for(config))
    if config.model.implementation == "transformers":
        return _open_modules(config, loader, manifest, activation_dtype)
    opened = _open_decoder(config, plugins, loader, manifest, prepared)
    if config.draft is None:
        return opened
    assert isinstance(opened.spec, DecoderSpec), "the layers are the engine's own"
    spec = msgspec.structs.replace(opened.spec, taps=config.draft.spec.taps)
    return replace(opened, spec=spec)


def _open_decoder(
    config: EngineConfig,
    plugins: PluginTable,
    loader: Loader,
    manifest: CheckpointManifest,
    prepared: PreparedWeights | None,
) -> Checkpoint:
    """A checkpoint that the engine's own layers run."""
    name = config.plugins.model
    hf_config = config.model.hf_config
    overridden = msgspec.structs.replace(manifest, config=hf_config)
    if name is None:
        spec = decoder_spec(hf_config)
        names = weight_map(overridden, spec)
    else:
        facts = manifest.facts()
        family: ModelFamily | HasRow = load_plugin(config, plugins, "model", name, facts=facts, manifest=manifest)
        spec = plugin_spec(family, hf_config)
        names = plugin_names(family, overridden, spec)
    if config.model.pooling is not None:
        spec = without_head(spec, names.manifest)
    return Checkpoint(names.loader(loader), names.manifest, spec, prepared=prepared, names=names)


def made_for(config: EngineConfig) -> MadeFor:
    """The settings that prepared kernels depend on."""
    method = config.plugins.quantization
    arguments = config.plugins.arguments.get(f"quantization.{method}", {})
    return MadeFor(config.model.dtype, config.model.numerics, method, arguments)


def _open_modules(
    config: EngineConfig, loader: Loader, manifest: CheckpointManifest, activation_dtype: torch.dtype
) -> Checkpoint:
    """A checkpoint that transformers' modules run."""
    from core.models.fallback.shape import shaped_model

    hf_config = config.model.hf_config
    has_code = config.model.trust_remote_code and "auto_map" in hf_config
    directory = config.model.model if has_code else None
    shaped = shaped_model(hf_config, manifest.tensors, activation_dtype, directory)
    return Checkpoint(loader, shaped.spec.canonical(manifest), shaped.spec, shaped)


def build(
    config: EngineConfig,
    checkpoint: Checkpoint,
    device: Device,
    plugins: PluginTable,
    part: Part = WHOLE,
    *,
    max_logits: int,
    reduce: Callable[[Tensor], None] | None = None,
    recorder: Recorder | None = None,
    finish: Finish | None = None,
    store: PartStore | None = None,
) -> ModelInstance:
    """Read the weights and make the model; `share_cache` then gives it its part of a cache.

    part: which part of the model is built.
    max_logits: most rows of logits of one call.
    reduce: adds up, in place, what the ranks of a divided model have computed; see `Decoder`.
    recorder: is told of the kernels of the engine's own layers; see `Packing`.
    finish: makes shape and weights that run of those that were loaded; None: they are the same.
    store: of the parts of a model that follows another; None: it is the first.
    """
    spec = checkpoint.spec.local(part)
    runtime = device.runtime
    dtype = runtime.activation_dtype(config.model.dtype)
    backends = _backends(config, spec, runtime, plugins)
    model: Decoder | ModuleModel
    if isinstance(spec, ModuleSpec):
        method = _quantization(config, checkpoint.manifest, plugins)
        model = _modules(config, checkpoint, device, method, _kernels(runtime), max_logits)
        no_scales: dict[int, AttentionParams] = {}  # a checkpoint that brings them was refused when it was read
        return ModelInstance(spec, model, config.cache, backends, no_scales)
    if store is None:
        store = PartStore(device.weights_arena())
    loading = weight_loading(config, checkpoint, device, plugins, store, part, recorder)
    weights = loading.run(checkpoint.loader, progress=config.use_tqdm_on_load)
    if finish is not None:
        spec, weights = finish(spec, weights)
    length = config.model.max_model_len + config.scheduler.num_speculative_tokens + 1
    tables = rotary_tables(spec, length, runtime.device, config.model.max_model_len)
    embedding = weights.embedding
    if embedding is not None and embedding.positions is not None:
        embedding.positions = lengthened(embedding.positions, length)
    model = Decoder(
        spec,
        weights,
        _kernels(runtime),
        tables,
        Workspace(runtime.device),
        dtype,
        max_step_tokens(config),
        max_logits,
        reduce,
    )
    scales = kv_scales(checkpoint.loader, checkpoint.manifest, config.cache.dtype)
    learned = _by_mixer(spec, scales)
    return ModelInstance(spec, model, config.cache, backends, learned, store=store)


def weight_loading(
    config: EngineConfig,
    checkpoint: Checkpoint,
    device: Device,
    plugins: PluginTable,
    store: PartStore,
    part: Part = WHOLE,
    recorder: Recorder | None = None,
) -> WeightLoading:
    """What reads the weights of a model that the engine's own layers run. store, recorder: see `Packing`."""
    assert isinstance(checkpoint.spec, DecoderSpec)
    runtime = device.runtime
    return WeightLoading(
        checkpoint.spec,
        checkpoint.manifest,
        _quantization(config, checkpoint.manifest, plugins),
        _kernels(runtime),
        config.model.dtype,
        runtime.activation_dtype(config.model.dtype),
        runtime.device,
        part,
        store=store,
        prepared=checkpoint.prepared,
        recorder=recorder,
    )


def _kernels(runtime: Runtime) -> KernelSet:
    """Those of a runtime, as a set."""
    kernels = runtime.kernels
    return kernels if isinstance(kernels, KernelSet) else KernelSet([kernels])


def _modules(
    config: EngineConfig,
    checkpoint: Checkpoint,
    device: Device,
    method: QuantizationMethod | None,
    kernels: KernelSet,
    max_logits: int,
) -> ModuleModel:
    """The model on transformers' modules, with its weights."""
    from core.models.fallback.build import build_modules

    assert checkpoint.shaped is not None, "the modules were built when the checkpoint was opened"
    runtime = device.runtime
    return build_modules(
        checkpoint.shaped,
        checkpoint.loader,
        checkpoint.manifest,
        method,
        kernels,
        config.model.dtype,
        runtime.activation_dtype(config.model.dtype),
        runtime.device,
        (max_step_tokens(config), max_logits),
        store=PartStore(device.weights_arena()),
        progress=config.use_tqdm_on_load,
    )


def _by_mixer(spec: DecoderSpec, scales: Mapping[int, AttentionParams]) -> dict[int, AttentionParams]:
    """Scales by the number of a mixer in this part, from scales by the number of a block in the whole model."""
    found: dict[int, AttentionParams] = {}
    place = 0
    for index, block in enumerate(spec.blocks):
        params = scales.get(spec.first_block + index)
        if params is not None and block.mixers:
            found[place] = params
        place += len(block.mixers)
    return found


def share_cache(instances: Sequence[ModelInstance], cache: CacheConfig, device: Device) -> KVMemory:
    """One KV memory for all layers of all models, numbered through in the order of `instances`.

    cache.groups: of these numbers; without any, all layers share one block table.
    Raises ConfigError when the planned bytes hold no block.
    """
    layer_bytes: list[int] = []
    for instance in instances:
        layer_bytes += instance.layer_bytes()
    groups = cache.groups or single_group(len(layer_bytes))
    num_blocks = num_blocks_of(cache, groups, layer_bytes)
    memory = KVMemory(device, groups, layer_bytes, num_blocks)
    bind_cache(instances, memory)
    return memory


def bind_cache(instances: Sequence[ModelInstance], memory: KVMemory) -> None:
    """Give all layers of all models, numbered through in the order of `instances`, their places in a memory."""
    first_layer = 0
    for instance in instances:
        instance.bind(memory, first_layer)
        first_layer += len(instance.model.mixers)


def max_step_tokens(config: EngineConfig) -> int:
    """Most tokens of one step."""
    return max(config.scheduler.max_num_batched_tokens, config.scheduler.max_num_seqs)


def load_plugin(config: EngineConfig, plugins: PluginTable, kind: str, name: str, **extra: Any) -> Any:
    """A chosen plugin with its arguments. extra: further fields of its `LoadContext`."""
    arguments = config.plugins.arguments.get(f"{kind}.{name}")
    context = LoadContext(device=config.device, dtype=config.model.dtype, arguments=arguments, config=config, **extra)
    return plugins.load(kind, name, context)


def shared_parts(weights: DecoderWeights | ModuleWeights) -> dict[str, object]:
    """What a proposer may use of the model: `embedding`, `head` (kernels) and `norm` (weights of the final one)."""
    way_in = weights.embedding
    way_out = weights.head
    norm = None if way_out is None else way_out.norm
    return {
        "embedding": None if way_in is None else way_in.tokens,
        "head": None if way_out is None else way_out.tokens,
        "norm": None if norm is None else norm.weight,
    }


def _quantization(
    config: EngineConfig, manifest: CheckpointManifest, plugins: PluginTable
) -> QuantizationMethod | None:
    name = config.plugins.quantization
    if name is None:
        return None
    roundings = roundings_of(plugins.capabilities("platform", config.plugins.platform))
    facts = manifest.facts()
    method: QuantizationMethod = load_plugin(
        config, plugins, "quantization", name, facts=facts, manifest=manifest, roundings=roundings
    )
    return method


def _backends(config: EngineConfig, spec: ModelSpec, runtime: Runtime, plugins: PluginTable) -> list[Any]:
    """The attention backend of each layer; layers of one kind share it."""
    names = config.plugins.attention
    loaded: dict[str, Any] = {}
    for name in sorted(set(names.values())):
        loaded[name] = load_plugin(config, plugins, "attention", name, kernels=runtime.kernels)
    backends: list[Any] = []
    for mixer in spec.mixers:
        name = names[mixer.kind]
        backends.append(loaded[name])
    return backends
