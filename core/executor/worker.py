"""The worker: one device, one model, its KV cache and its runner.

Owns: the order of start-up (plugins, checkpoint, device, weights, cache) and the time of each phase.
Never does: choose plugins (the configuration did) or schedule. Called by: executors.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from core.api.checkpoint import CheckpointManifest
from core.api.config import EngineConfig
from core.api.errors import ConfigError
from core.api.step_plan import StepPlan, StepResult
from core.executor.batch import PersistentBatch
from core.executor.forward import ForwardPass, capture_of
from core.executor.host_memory import release_unused_memory
from core.executor.model_runner import ModelRunner
from core.executor.step_buffers import StepBuffers
from core.layers.kernels import KernelSet
from core.layers.rotary import tables
from core.layers.workspace import Workspace
from core.models.decoder import AttentionLayer, Decoder
from core.models.families import decoder_spec
from core.models.loading import WeightLoading
from core.plugin.contracts import AttentionBackend, Loader, Platform, Proposer, QuantizationMethod, Runtime
from core.plugin.hookspecs import LoadContext
from core.plugin.table import PluginTable
from core.sampling.sampler import Sampler

MAX_LOGIT_ROWS = 64


class Worker:
    """Everything that runs on one device.

    num_blocks: KV blocks. weights_nbytes, kv_nbytes: bytes of prepared weights and of the cache.
    numerics: names what results depend on. phases: (name, seconds) of the start.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.phases: list[tuple[str, float]] = []
        self.plugins = PluginTable(config.plugins.table)
        with self._phase("open device"):
            self.runtime = self._open()
        with self._phase("read checkpoint"):
            loader: Loader = self.plugins.load(
                "loader", config.plugins.loader, self._context("loader", config.plugins.loader)
            )
            manifest = loader.resolve(config.model.model)
            self.spec = decoder_spec(config.model.hf_config)
        with self._phase("load weights"):
            model = self._model(loader, manifest)
            del manifest
            release_unused_memory()
        with self._phase("allocate KV cache"):
            self._bind_attention(model)
        buffers = StepBuffers(
            self._max_num_tokens,
            config.scheduler.max_num_seqs,
            -(-(config.model.max_model_len + config.scheduler.num_speculative_tokens + 1) // config.cache.block_size),
            MAX_LOGIT_ROWS,
            self.runtime.device,
        )
        capture = capture_of(model, self.runtime, enforce_eager=config.model.enforce_eager)
        self.runner = ModelRunner(
            ForwardPass(model, buffers, capture),
            PersistentBatch(buffers, config.cache.block_size),
            Sampler(config.model.vocab_size or self.spec.vocab_size, model.kernels.race),
            self._proposer(),
        )

    @property
    def numerics(self) -> str:
        """Kernels, attention, dtypes."""
        attention = ",".join(sorted({layer.backend.numerics for layer in self.runner.forward.model.attention}))
        kernels = self.runtime.kernels.numerics
        return f"{kernels}/{attention}/{self.config.model.dtype}/kv-{self.config.cache.dtype}"

    @property
    def _max_num_tokens(self) -> int:
        """Most tokens of one step."""
        return max(self.config.scheduler.max_num_batched_tokens, self.config.scheduler.max_num_seqs)

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step."""
        return self.runner.execute(plan)

    def close(self) -> None:
        """Give threads and memory back."""
        self.runtime.close()

    @contextmanager
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
        shared = {
            (block.rope, block.attention.head_size): tables(
                block.rope, block.attention.head_size, length, runtime.device
            )
            for block in self.spec.blocks
        }
        return Decoder(
            self.spec,
            weights,
            kernels,
            [shared[block.rope, block.attention.head_size] for block in self.spec.blocks],
            Workspace(runtime.device),
            activation_dtype,
            self._max_num_tokens,
            MAX_LOGIT_ROWS,
        )

    def _bind_attention(self, model: Decoder) -> None:
        """Give every layer its backend and its part of the cache."""
        cache, names = self.config.cache, self.config.plugins.attention
        backends: dict[str, AttentionBackend] = {
            name: self.plugins.load("attention", name, self._context("attention", name, kernels=self.runtime.kernels))
            for name in sorted(set(names.values()))
        }
        layers = [(block.attention, backends[names[block.attention.kind]]) for block in self.spec.blocks]
        sizes = [backend.kv_layout(spec, cache.block_size, cache.dtype).block_bytes for spec, backend in layers]
        self.num_blocks = cache.num_blocks or cache.memory_bytes // sum(sizes)
        if self.num_blocks < 2:
            raise ConfigError(
                [
                    f"The KV cache of {cache.memory_bytes:,} bytes holds no block of {sum(sizes):,} bytes; "
                    "raise --kv-cache-memory-bytes or lower --block-size."
                ]
            )
        self.kv_nbytes = self.num_blocks * sum(sizes)
        for (spec, backend), size in zip(layers, sizes, strict=True):
            raw = self.runtime.allocate(self.num_blocks * size).view(self.num_blocks, size)
            model.attention.append(
                AttentionLayer(backend, backend.bind(spec, cache.block_size, cache.dtype, raw), spec.kind)
            )

    def _proposer(self) -> Proposer | None:
        name = self.config.plugins.speculative
        if name is None:
            return None
        proposer: Proposer = self.plugins.load("speculative", name, self._context("speculative", name))
        return proposer
