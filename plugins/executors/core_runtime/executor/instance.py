"""A model that is ready to run: its shape, weights, mixers with their part of the cache, and forward pass.

Owns: how a checkpoint and a configuration become a model, and how models share one KV cache.
Never does: choose plugins (the configuration did), run a step. Called by: the worker, once a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import Tensor

from core.api.config import CacheConfig, EngineConfig
from core.api.errors import PluginError
from core.api.specs import MixerSpec
from core.plugin.table import PluginTable
from core_runtime.contracts import AttentionParams, FetchesWeights, Runtime
from core_runtime.executor.cache.kv_memory import KVMemory, num_blocks_of
from core_runtime.executor.device import Device
from core_runtime.executor.plugin_loading import attention_backends, quantization_method
from core_runtime.executor.reloading.arena import HOST_CHUNK, Arena
from core_runtime.executor.reloading.checkpoint import Checkpoint
from core_runtime.layers.kernels import KernelSet
from core_runtime.layers.rotary import rotary_tables
from core_runtime.layers.workspace import Workspace
from core_runtime.models.decoder import Decoder
from core_runtime.models.decoder_weights import DecoderWeights
from core_runtime.models.embedding import lengthened
from core_runtime.models.layer_ranges import LayerRanges
from core_runtime.models.spare_rows import spare_rows
from core_runtime.models.tensors.host_weights import HostWeights
from core_runtime.models.tensors.kv_scales import kv_scales
from core_runtime.models.tensors.loading import WHOLE, WeightLoading
from core_runtime.models.tensors.packing import Packing
from core_runtime.models.tensors.part_store import PartStore
from core_runtime.models.tensors.prepared import Recorder
from core_runtime.specs.adapter_type import adapter_name
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.kv_groups import group_layers, stored_bytes
from core_runtime.specs.kv_types import kv_name
from core_runtime.specs.model_part import Part
from core_runtime.specs.module_spec import ModelSpec, ModuleSpec
from core_runtime.specs.profile_settings import profile_settings_of
from core_runtime.specs.weight_offload import block_of_each, offload_of

if TYPE_CHECKING:
    from core_runtime.models.fallback.model import ModuleModel, ModuleWeights

Finish = Callable[[DecoderSpec, DecoderWeights], tuple[DecoderSpec, DecoderWeights]]


@dataclass(slots=True)
class ModelInstance:
    """One model on one device. The worker owns it.

    spec: shape of the model.
    model: weights and forward pass.
    cache: configuration of the KV cache.
    backends: attention backend of each layer, by its place in the model.
    learned: scales of an 8-bit cache from the checkpoint, by the number of a mixer.
    lenders: numbers of mixers that store nothing, and of those whose blocks they read.
    groups: KV group of each layer; empty until a cache is bound.
    store: parts of the model, which newer weights may reuse; None for modules of transformers.
    part_numerics: see `Packing.numerics`.
    """

    spec: ModelSpec
    model: Decoder | ModuleModel
    cache: CacheConfig
    backends: list[Any]
    learned: dict[int, AttentionParams]
    lenders: dict[int, int] = field(default_factory=dict)
    groups: list[int] = field(default_factory=list)
    store: PartStore | None = None
    part_numerics: str = ""

    @property
    def weights_nbytes(self) -> int:
        """Bytes of the prepared weights."""
        return self.model.weights.nbytes

    @property
    def attention_numerics(self) -> set[str]:
        """Names of the numerics of its attention backends, which results depend on."""
        return {backend.numerics for backend in self.backends}

    def layer_bytes(self, first_layer: int = 0) -> list[int]:
        """Return the bytes of one block of each layer, or of a sequence's state in it; 0 for a layer that reads another
        one's blocks. first_layer: see `bind`.

        Raises PluginError when a backend needs more than planned.
        """
        sizes: list[int] = []
        layers = zip(self.model.mixers, self.backends, strict=True)
        for layer, (mixer, backend) in enumerate(layers, first_layer):
            sizes.append(mixer.layer_bytes(backend, self._cache_of(layer)))
        return stored_bytes(sizes, self.lenders)

    def bind(self, memory: KVMemory, first_layer: int) -> None:
        """Bind each layer to its buffer. first_layer: number of this model's first layer in the memory's groups."""
        self.groups = []
        layers = zip(self.model.mixers, self.backends, strict=True)
        for index, (mixer, backend) in enumerate(layers):
            place = self.lenders.get(index, index)
            layer = first_layer + place
            buffer = memory.of_layer(layer)
            cache = self._cache_of(layer)
            # The checkpoint's scales are those of the whole cache's type.
            scales = self.learned.get(place) if cache.dtype == self.cache.dtype else None
            mixer.bind_cache(backend, cache, buffer, scales)
            self.groups.append(memory.group_of_layer(layer))

    def _cache_of(self, layer: int) -> CacheConfig:
        """Return the configuration of the cache with the storage type of one layer."""
        dtypes = self.cache.layer_dtypes
        return msgspec.structs.replace(self.cache, dtype=dtypes[layer]) if dtypes else self.cache


def build(
    config: EngineConfig,
    checkpoint: Checkpoint,
    device: Device,
    plugins: PluginTable,
    part: Part = WHOLE,
    *,
    reduce: Callable[[Tensor], None] | None = None,
    recorder: Recorder | None = None,
    finish: Finish | None = None,
    store: PartStore | None = None,
    around: Callable[[Sequence[Any], Sequence[MixerSpec], int], list[Any]] | None = None,
) -> ModelInstance:
    """Read the weights and make the model; `share_cache` then binds it to its part of a cache.

    part: part of the model to build.
    reduce: adds up, in place, the partial results of the ranks of a divided model; see `Decoder`.
    recorder: receives the kernels of the engine's own layers; see `Packing`.
    finish: derives the shape and weights that run from the loaded ones; None: they are the same.
    store: parts of the model's predecessor; None: it is the first.
    around: returns the attention backends that layers call, see `Ranks.around`; None: those of the plugins.
    """
    spec = checkpoint.spec.local(part)
    runtime = device.runtime
    # Rotary tables and gathered keys also cover the positions of a step's drafts.
    length = config.model.max_model_len + config.scheduler.num_speculative_tokens + 1
    backends = attention_backends(config, spec, runtime, plugins)
    if around is not None:
        backends = around(backends, spec.mixers, length)
    if store is None:
        store = PartStore(device.weights_arena(), _host_weights(config, spec, device))
    if isinstance(spec, ModuleSpec):
        modules = _modules(config, checkpoint, packing_of(config, checkpoint, device, plugins, store))
        no_scales: dict[int, AttentionParams] = {}  # a checkpoint that brings them was refused when it was read
        return ModelInstance(spec, modules, config.cache, backends, no_scales)
    assert isinstance(checkpoint.spec, DecoderSpec)
    packing = packing_of(config, checkpoint, device, plugins, store, part, recorder)
    loading = WeightLoading(checkpoint.spec, checkpoint.manifest, packing)
    weights = loading.run(checkpoint.loader, progress=config.use_tqdm_on_load)
    if finish is not None:
        spec, weights = finish(spec, weights)
    model = _decoder(config, spec, weights, packing.kernels, runtime, length, reduce)
    if store.host is not None:
        model.fetch = store.host.finish()
    scales = kv_scales(checkpoint.loader, checkpoint.manifest, config.cache.dtype)
    learned = _by_mixer(spec, scales)
    return ModelInstance(
        spec, model, config.cache, backends, learned, spec.lenders, store=store, part_numerics=packing.numerics
    )


def _decoder(
    config: EngineConfig,
    spec: DecoderSpec,
    weights: DecoderWeights,
    kernels: KernelSet,
    runtime: Runtime,
    length: int,
    reduce: Callable[[Tensor], None] | None,
) -> Decoder:
    """Make the forward pass of prepared weights. length: tokens of the longest sequence, with the drafts of a step."""
    num_spare = config.limits.tokens if config.media is not None else 0
    tables = rotary_tables(spec, length + num_spare, runtime.device, config.model.max_model_len)
    embedding = weights.embedding
    if embedding is not None and embedding.positions is not None:
        embedding.positions = lengthened(embedding.positions, length)
    dtype = runtime.activation_dtype(config.model.dtype)
    model = Decoder(spec, weights, kernels, tables, Workspace(runtime.device), dtype, config.limits, reduce)
    if num_spare:
        model.spare = spare_rows(spec, tables, length)
    if profile_settings_of(config).layers:
        model.ranges = LayerRanges(torch.cuda.nvtx if runtime.device.type == "cuda" else None)
    return model


def _host_weights(config: EngineConfig, spec: ModelSpec, device: Device) -> HostWeights | None:
    """Return the place for weights in host memory, None where all of this model's lie on the device.

    Raises PluginError for a device that cannot come to them.
    """
    offload = offload_of(config)
    if offload is None or not isinstance(spec, DecoderSpec):
        return None
    runtime = device.runtime
    if not isinstance(runtime, FetchesWeights):
        raise PluginError(
            f"{runtime.device}: weights in host memory are out of its reach, expected a platform with `fetch`; leave "
            "--cpu-offload-gb and --offload-group-size out."
        )
    # A small model needs less than a whole chunk.
    chunk = min(HOST_CHUNK, 1 << offload.nbytes.bit_length())
    arena = Arena(runtime.host_memory, lambda nbytes: None, chunk)
    blocks = block_of_each(spec, offload.roles)
    return HostWeights(offload, blocks, runtime, arena, lambda nbytes: device.allocate(nbytes, "weights"))


def packing_of(
    config: EngineConfig,
    checkpoint: Checkpoint,
    device: Device,
    plugins: PluginTable,
    store: PartStore | None = None,
    part: Part = WHOLE,
    recorder: Recorder | None = None,
) -> Packing:
    """Return the packing of a model's parts; see `Packing`."""
    runtime = device.runtime
    kernels = runtime.kernels
    return Packing(
        checkpoint.spec,
        part,
        quantization_method(config, checkpoint.manifest, plugins),
        kernels if isinstance(kernels, KernelSet) else KernelSet([kernels]),
        config.model.dtype,
        runtime.activation_dtype(config.model.dtype),
        runtime.device,
        store,
        checkpoint.prepared,
        recorder,
    )


def _modules(config: EngineConfig, checkpoint: Checkpoint, packing: Packing) -> ModuleModel:
    """Build the model on modules of transformers, with its weights."""
    from core_runtime.models.fallback.build import build_modules

    shaped = checkpoint.shaped
    assert shaped is not None, "the modules were built when the checkpoint was opened"
    progress = config.use_tqdm_on_load
    return build_modules(shaped, checkpoint.loader, checkpoint.manifest, packing, config.limits, progress=progress)


def _by_mixer(spec: DecoderSpec, scales: Mapping[int, AttentionParams]) -> dict[int, AttentionParams]:
    """Return scales by the number of a mixer in this part, from scales by the number of a block in the whole model."""
    found: dict[int, AttentionParams] = {}
    place = 0
    for index, block in enumerate(spec.blocks):
        params = scales.get(spec.first_block + index)
        if params is not None and block.mixers:
            found[place] = params
        place += len(block.mixers)
    return found


def share_cache(
    instances: Sequence[ModelInstance], cache: CacheConfig, device: Device, file: int | None = None
) -> KVMemory:
    """Make one KV memory for all layers of all models, numbered through in the order of `instances`.

    cache.groups: groups of these numbers; empty: all layers share one block table.
    file: descriptor of the file in memory that its blocks lie in; None: they end with this process.
    Raises ConfigError when the planned bytes hold no block.
    """
    layer_bytes: list[int] = []
    for instance in instances:
        layer_bytes += instance.layer_bytes(len(layer_bytes))
    groups = cache.groups or group_layers([None] * len(layer_bytes), layer_bytes)
    num_blocks = num_blocks_of(cache, groups, layer_bytes)
    kept = None if file is None else (file, cache.block_size)
    memory = KVMemory(device, groups, layer_bytes, num_blocks, kept)
    bind_cache(instances, memory)
    return memory


def bind_cache(instances: Sequence[ModelInstance], memory: KVMemory) -> None:
    """Bind all layers of all models, numbered through in the order of `instances`, to their places in a memory."""
    first_layer = 0
    for instance in instances:
        instance.bind(memory, first_layer)
        first_layer += len(instance.model.mixers)


def shared_parts(weights: DecoderWeights | ModuleWeights) -> dict[str, object]:
    """Return the parts of the model that a proposer may use: `embedding`, `head` (kernels), `norm` (weights of the
    final one).
    """
    way_in = weights.embedding
    way_out = weights.head
    norm = None if way_out is None else way_out.norm
    return {
        "embedding": None if way_in is None else way_in.tokens,
        "head": None if way_out is None else way_out.tokens,
        "norm": None if norm is None else norm.weight,
    }


def numerics_of(config: EngineConfig, runtime: Runtime, instances: Sequence[ModelInstance]) -> str:
    """Return the names of everything that results of these models depend on: kernels, attention, dtypes."""
    backends: set[str] = set()
    for instance in instances:
        backends |= instance.attention_numerics
    attention = ",".join(sorted(backends))
    parts = [f"/{one.part_numerics}" for one in instances[:1] if one.part_numerics]
    cache = config.cache
    kv = kv_name(cache.dtype, cache.layer_dtypes, cache.state_dtype)
    adapters = config.adapters
    lora = "" if adapters is None else adapter_name(config.model.dtype, adapters.lora_dtype)
    return f"{runtime.kernels.numerics}/{attention}/{config.model.dtype}/kv-{kv}{''.join(parts)}{lora}"
