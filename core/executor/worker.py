"""The worker: one device, one model, its KV cache and its runner.

Owns: the order of start-up (plugins, checkpoint, device, weights, cache) and the time of each phase.
Never does: choose plugins (the configuration did) or schedule. Called by: executors.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from core.api.checkpoint import CheckpointManifest
from core.api.config import CacheConfig, EngineConfig
from core.api.errors import ConfigError, PluginError
from core.api.specs import STATE_DTYPE, MixerSpec, StateSpec
from core.api.step_plan import StepPlan, StepResult
from core.executor.batch import PersistentBatch
from core.executor.forward import ForwardPass, capture_of
from core.executor.host_memory import release_unused_memory
from core.executor.kv_memory import KVMemory
from core.executor.model_runner import ModelRunner
from core.executor.step_buffers import StepBuffers
from core.kv.groups import page_bytes, single_group
from core.layers.kernels import KernelSet
from core.layers.rows import RowKernels
from core.layers.workspace import Workspace
from core.models.decoder import Decoder, rotary_tables
from core.models.families import canonical, decoder_spec, renamed
from core.models.kv_scales import kv_scales
from core.models.loading import WeightLoading
from core.models.logit_rows import logit_rows
from core.models.mixers.state import StateMixer
from core.models.spec import DecoderSpec
from core.plugin.contracts import (
    AttentionParams,
    Loader,
    ModelFamily,
    Platform,
    Proposer,
    QuantizationMethod,
    Runtime,
)
from core.plugin.hookspecs import LoadContext
from core.plugin.table import PluginTable
from core.sampling.sampler import Sampler


class Worker:
    """Everything that runs on one device.

    num_blocks: KV blocks. groups: layers that share a block table.
    weights_nbytes, kv_nbytes: bytes of prepared weights and of the cache.
    numerics: names what results depend on. phases: (name, seconds) of the start.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.phases: list[tuple[str, float]] = []
        self.plugins = PluginTable(config.plugins.table)
        try:
            with contextlib.ExitStack() as undo:
                self._start(config, undo)
                undo.pop_all()
        except Exception as error:
            self.plugins.blame(error)
            raise

    def _start(self, config: EngineConfig, undo: contextlib.ExitStack) -> None:
        """Everything in order; `undo` gives back what was taken when it fails half-way."""
        with self._phase("open device"):
            self.runtime = undo.enter_context(contextlib.closing(self._open()))
        with self._phase("read checkpoint"):
            loader: Loader = self.plugins.load(
                "loader", config.plugins.loader, self._context("loader", config.plugins.loader)
            )
            manifest = loader.resolve(config.model.model)
            self.spec, manifest = self._family(manifest)
        with self._phase("load weights"):
            model = self._model(loader, manifest)
            params = kv_scales(loader, manifest, config.cache.dtype)
            del manifest
            release_unused_memory()
        with self._phase("allocate KV cache"):
            self._bind_attention(model, params)
        buffers = StepBuffers(
            self._max_num_tokens,
            config.scheduler.max_num_seqs,
            self._max_table_length,
            self._max_logits,
            self.runtime.device,
            len(self.groups),
        )
        capture = capture_of(model, self.runtime, enforce_eager=config.model.enforce_eager)
        self.runner = ModelRunner(
            ForwardPass(model, buffers, capture, self._group_of_layers()),
            PersistentBatch(buffers, config.cache.block_size, self.groups),
            Sampler(config.model.vocab_size or self.spec.vocab_size, model.kernels.race, model.kernels.logprobs),
            self._proposer(model),
        )

    @property
    def numerics(self) -> str:
        """Kernels, attention, dtypes."""
        attention = ",".join(sorted({mixer.backend.numerics for mixer in self.runner.forward.model.mixers}))
        kernels = self.runtime.kernels.numerics
        return f"{kernels}/{attention}/{self.config.model.dtype}/kv-{self.config.cache.dtype}"

    @property
    def _max_num_tokens(self) -> int:
        """Most tokens of one step."""
        return max(self.config.scheduler.max_num_batched_tokens, self.config.scheduler.max_num_seqs)

    @property
    def _max_logits(self) -> int:
        """Most rows of logits at once, as planned."""
        limits = self.config.scheduler
        return logit_rows(self.spec.vocab_size, limits.max_num_seqs, limits.num_speculative_tokens)

    @property
    def _max_table_length(self) -> int:
        """Blocks in the longest row of a block table."""
        length = self.config.model.max_model_len + self.config.scheduler.num_speculative_tokens + 1
        return max(-(-length // self.config.cache.block_size), *(group.num_state_blocks for group in self.groups))

    def execute(self, plan: StepPlan) -> StepResult:
        """Make the plan's copies of KV blocks, then run the step. Raises PluginError when a plugin's code fails."""
        try:
            pages = None if plan.transfers is None else self.kv_memory.transfer(plan.transfers)
            result = self.runner.execute(plan)
        except Exception as error:
            self.plugins.blame(error)
            raise
        result.pages = pages
        return result

    def close(self) -> None:
        """Give threads and memory back."""
        self.runtime.close()

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.phases.append((name, time.perf_counter() - begin))

    def _context(self, kind: str, name: str, **extra: object) -> LoadContext:
        return LoadContext(
            device=self.config.device,
            dtype=self.config.model.dtype,
            arguments=self.config.plugins.arguments.get(f"{kind}.{name}"),
            config=self.config,
            **extra,  # type: ignore[arg-type]
        )

    def _open(self) -> Runtime:
        choices = self.config.plugins
        platform: Platform = self.plugins.load(
            "platform", choices.platform, self._context("platform", choices.platform)
        )
        providers = [
            self.plugins.load(
                "kernels", name, self._context("kernels", name, options={"num_threads": platform.num_threads})
            )
            for name in choices.kernels
        ]
        if self.config.model.numerics == "reference":
            providers.append(RowKernels())
        return platform.open(self.config.device, providers)

    def _model(self, loader: Loader, manifest: CheckpointManifest) -> Decoder:
        config, runtime = self.config, self.runtime
        method: QuantizationMethod | None = None
        if config.plugins.quantization is not None:
            name = config.plugins.quantization
            context = self._context("quantization", name, facts=manifest.facts(), manifest=manifest)
            method = self.plugins.load("quantization", name, context)
        kernels = runtime.kernels if isinstance(runtime.kernels, KernelSet) else KernelSet([runtime.kernels])
        activation_dtype = runtime.activation_dtype(config.model.dtype)
        loading = WeightLoading(
            self.spec, manifest, method, kernels, config.model.dtype, activation_dtype, runtime.device
        )
        weights = loading.run(loader, progress=config.use_tqdm_on_load)
        self.weights_nbytes = weights.nbytes
        length = config.model.max_model_len + config.scheduler.num_speculative_tokens + 1
        return Decoder(
            self.spec,
            weights,
            kernels,
            rotary_tables(self.spec, length, runtime.device),
            Workspace(runtime.device),
            activation_dtype,
            self._max_num_tokens,
            self._max_logits,
        )

    def _bind_attention(self, model: Decoder, params: dict[int, AttentionParams]) -> None:
        """Give every layer its backend and its part of the cache."""
        cache, names = self.config.cache, self.config.plugins.attention
        backends: dict[str, Any] = {  # each has the contracts of its layer kinds: loading checks it
            name: self.plugins.load("attention", name, self._context("attention", name, kernels=self.runtime.kernels))
            for name in sorted(set(names.values()))
        }
        layers = [(block.mixer, backends[names[block.mixer.kind]]) for block in self.spec.blocks]
        layer_bytes = [_layer_bytes(spec, backend, cache) for spec, backend in layers]
        self.groups = cache.groups or single_group(len(layers))
        block_bytes = page_bytes(self.groups, layer_bytes)
        self.num_blocks = cache.num_blocks or cache.memory_bytes // block_bytes
        if self.num_blocks < 2:
            raise ConfigError(
                [
                    f"The KV cache of {cache.memory_bytes:,} bytes holds no block of {block_bytes:,} bytes; "
                    "raise --kv-cache-memory-bytes or lower --block-size."
                ]
            )
        self.kv_memory = KVMemory(self.runtime, self.groups, layer_bytes, self.num_blocks)
        self.kv_nbytes = self.num_blocks * block_bytes
        for index, (spec, backend) in enumerate(layers):
            learned = (params[index],) if index in params else ()
            raw, mixer = self.kv_memory.of_layer(index), model.mixers[index]
            if isinstance(mixer, StateMixer):
                handle = backend.bind_state(spec, STATE_DTYPE, raw, mixer.params)
            else:
                handle = backend.bind(spec, cache.block_size, cache.dtype, raw, *learned)
            mixer.bind(backend, handle)

    def _group_of_layers(self) -> list[int]:
        """The KV group of each layer."""
        group_of = {layer: index for index, group in enumerate(self.groups) for layer in group.layers}
        return [group_of[layer] for layer in range(len(group_of))]

    def _family(self, manifest: CheckpointManifest) -> tuple[DecoderSpec, CheckpointManifest]:
        """The model's shape, and its tensors under canonical names."""
        name, hf_config = self.config.plugins.model, self.config.model.hf_config
        if name is None:
            return decoder_spec(hf_config), canonical(manifest)
        context = self._context("model", name, facts=manifest.facts(), manifest=manifest)
        family: ModelFamily = self.plugins.load("model", name, context)
        tensors = renamed(manifest.tensors, family.canonical_name)
        return family.decoder_spec(hf_config), msgspec.structs.replace(manifest, tensors=tensors)

    def _proposer(self, model: Decoder) -> Proposer | None:
        name = self.config.plugins.speculative
        if name is None:
            return None
        weights = model.weights
        parts = {"embedding": weights.embedding, "head": weights.head, "norm": weights.norm}
        proposer: Proposer = self.plugins.load("speculative", name, self._context("speculative", name, options=parts))
        return proposer


def _layer_bytes(spec: MixerSpec, backend: Any, cache: CacheConfig) -> int:
    """One block of a layer, or a sequence's state in it, which has what was planned for it. Raises PluginError."""
    if not isinstance(spec, StateSpec):
        return int(backend.kv_layout(spec, cache.block_size, cache.dtype).block_bytes)
    told = backend.state_layout(spec, STATE_DTYPE)
    if not 0 < told <= spec.state_bytes:
        raise PluginError(
            f"attention backend '{backend.name}' wants {told} bytes for a state of {spec.op}; expected at most "
            f"{spec.state_bytes}, which is what the model's family plans."
        )
    return spec.state_bytes
