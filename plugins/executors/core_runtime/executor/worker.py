"""The worker: one device, its models, their KV cache and the step runner.

Owns: the order of start-up (device, checkpoint, weights, cache) and the time of each phase.
Never does: choose plugins (the configuration did), build a model (`instance.build` does) or schedule.
Called by: executors.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from functools import cached_property

from torch import Tensor

from core.api.adapters import AdapterFacts, AdapterSource
from core.api.config import EngineConfig
from core.api.errors import UserError
from core.api.specs import KVGroup
from core.api.step_plan import StepPlan, StepResult
from core.api.weights import FileState, WeightsState
from core.plugin.table import PluginTable
from core_kv_connectors.peers.page_shape import PageShape
from core_runtime.contracts import AdapterFormat, ExplainsFailures, Loader
from core_runtime.executor.adapters.outer import OuterChanges
from core_runtime.executor.adapters.own_tensors import Parts, own_tensors
from core_runtime.executor.adapters.placed import PlacedAdapters
from core_runtime.executor.adapters.reading import AdapterReader
from core_runtime.executor.adapters.settings import fitting_of, placed_adapters
from core_runtime.executor.adapters.share import AdapterShare
from core_runtime.executor.adapters.towers import AdaptedTower
from core_runtime.executor.cache.kv_halves import WorkerHalves
from core_runtime.executor.cache.kv_memory import KVMemory
from core_runtime.executor.cache.kv_shape import page_shape
from core_runtime.executor.cache.page_copies import SavedPages
from core_runtime.executor.canary import state_of
from core_runtime.executor.constraints.grammar_backends import open_grammars
from core_runtime.executor.device import Device
from core_runtime.executor.host_memory import release_unused_memory
from core_runtime.executor.instance import ModelInstance, bind_cache, numerics_of, packing_of, share_cache
from core_runtime.executor.plugin_loading import adapter_formats, load_plugin, open_runtime
from core_runtime.executor.processors.loading import open_processors
from core_runtime.executor.ranks import Ranks
from core_runtime.executor.reloading.building import Stores, build_models
from core_runtime.executor.reloading.checkpoint import Checkpoint, open_checkpoint
from core_runtime.executor.reloading.memory_tensors import KeptTensors
from core_runtime.executor.reloading.remembered_loader import RememberedLoader
from core_runtime.executor.runner_building import RunnerBuilder, StepRunner
from core_runtime.executor.saved_weights import SpilledWeights, check_keeping
from core_runtime.executor.steps.ahead import Begun, StepsAhead
from core_runtime.executor.stored_weights import saved_weights
from core_runtime.executor.warm_up import WarmUps
from core_runtime.executor.weight_chain import WeightChain
from core_runtime.models.decoder import Decoder
from core_runtime.models.tensors.loading import WHOLE
from core_runtime.specs.draft_config import draft_of
from core_runtime.specs.module_spec import ModelSpec

logger = logging.getLogger(__name__)


class Worker:
    """Everything that runs on one device. The executor owns it.

    ranks: this worker's place among several that compute the model together; None: it computes the whole.
    runtime, device: the opened device, and its allocations.
    instances: the models; the first is the target.
    whole: shape of the whole target, of which a rank has a part.
    kv_memory: the cache that they share; absent while it is released.
    kv_halves: halves of KV connectors that move its blocks themselves.
    runner: runs the steps.
    base_files: files of the checkpoint.
    kept_tensors: tensors of updates that cannot be read again from elsewhere.
    saved: file for the prepared weights, which a later start or wake-up uses; None: this engine has none.
    grammars: grammars of sequences; another thread may prepare them.
    processors: logits processors; None: there are none.
    phases: (name, seconds) of the phases of start-up.
    state: weights and tables for the state canary; None without one.
    ahead: steps in flight of an asynchronous device; None: each step is waited for.
    adapters: adapters that steps may use; None: the engine has none.
    tower: keeps what adapters change of a tower; None: they change none.
    """

    def __init__(self, config: EngineConfig, ranks: Ranks | None = None) -> None:
        self.config = config
        self.ranks = ranks
        self.phases: list[tuple[str, float]] = []
        draft = draft_of(config)
        self.plugins = PluginTable(config.plugins.table + (() if draft is None else draft.plugins.table))
        self.kv_halves = WorkerHalves(config, self.plugins)
        self.kept_tensors = KeptTensors(config.tensors_file)
        self.ahead: StepsAhead | None = None
        self.tower: AdaptedTower | None = None
        self._steps: StepRunner | None = None
        self.adapters = None if config.adapters is None else placed_adapters(config.adapters, config.model.dtype)
        with self._blaming(), contextlib.ExitStack() as undo, self._explaining():
            with self._phase("open device"):
                self.open_device()
                undo.callback(self.runtime.close)
            # Beside all that follows: kernels are compiled in other processes.
            warm_ups = WarmUps(config, self.runtime)
            undo.callback(warm_ups.stop)
            if config.weights_file is not None:
                check_keeping(config, self.runtime.device.type)
            if config.kv_file is not None:
                self.device.in_files()  # refused before the weights are loaded
            self.processors = open_processors(config, self.plugins)
            with self._phase("read checkpoint"):
                checkpoint = self.open_checkpoint(self.chain(config.weights))
                self.base_files = checkpoint.manifest.files
                if config.adapters is not None:
                    self._fitting = fitting_of(checkpoint, config.adapters)
                self.saved = saved_weights(config, checkpoint, is_whole=ranks is None)
            with self._phase("load weights"):
                self.instances = self.build_models(checkpoint, self.saved)
                # So that `release_unused_memory` also frees what only the checkpoint refers to.
                del checkpoint
                weights = self.instances[0].model.weights
                self.state = state_of({"weights": weights}) if config.state_canary else None
                release_unused_memory()
            with self._phase("compile kernels"):
                warm_ups.finish()
            with self._phase("allocate KV cache"):
                self.kv_memory = self._shared_cache()
            self.grammars = open_grammars(config, self.plugins, config.model.vocab_size or self.spec.vocab_size)
            self._use_steps(self._step_runner(self.instances))
            if self.saved is not None:
                # Last, so that a failed start writes nothing.
                self.saved.started()
            undo.pop_all()  # nothing failed: the device stays open until `close`

    def open_loader(self) -> Loader:
        """Make a new loader of the checkpoint."""
        loader: Loader = load_plugin(self.config, self.plugins, "loader", self.config.plugins.loader)
        return loader

    def chain(
        self, state: WeightsState, loader: RememberedLoader | None = None, base_files: Sequence[FileState] = ()
    ) -> WeightChain:
        """Return the sources of a state of the weights; no tensor is read. Raises CheckpointError.

        loader: replaces a new loader. base_files: see `WeightChain`.
        """
        known = loader or RememberedLoader(self.open_loader())
        return WeightChain(known, self.config.model.model, state, self.kept_tensors, base_files)

    def open_checkpoint(self, chain: WeightChain) -> Checkpoint:
        """Open the configured checkpoint with the tensors of a chain; none is read. Raises CheckpointError."""
        dtype = self.runtime.activation_dtype(self.config.model.dtype)
        return open_checkpoint(self.config, self.plugins, dtype, lambda plain: chain)

    def build_models(
        self, checkpoint: Checkpoint, saved: SpilledWeights | None, stores: Stores = (None, None)
    ) -> list[ModelInstance]:
        """Build the target and its draft, without a cache; see `core_runtime.executor.reloading.building`."""
        self.whole = checkpoint.spec
        return build_models(self.config, checkpoint, self.device, self.plugins, self.ranks, saved, stores)

    def use_models(self, instances: list[ModelInstance]) -> None:
        """Switch to other models of the same shapes, on the existing cache.

        All sequences of earlier plans are forgotten. When this raises, nothing has changed.
        """
        bind_cache(instances, self.kv_memory)
        steps = self._step_runner(instances)
        # Only after the new runner exists, so that a failure leaves the old one in use.
        self._end_steps()
        self.instances = instances
        self._use_steps(steps)

    def read_adapter(self, source: AdapterSource, state: WeightsState) -> AdapterFacts:
        """Read an adapter for the weights of a state; called in another thread than that of the steps. Raises UserError."""
        placed = self.placed()

        def own(parts: Parts, further: Sequence[str] = ()) -> dict[str, Tensor]:
            checkpoint = self.open_checkpoint(self.chain(state))
            packing = packing_of(self.config, checkpoint, self.device, self.plugins)
            return dict(own_tensors(checkpoint, packing, parts, further))

        with self._blaming():
            model = self.instances[0].model
            assert isinstance(model, Decoder), "only such a model has adapters"
            outer = OuterChanges(placed, model.kernels, model.weights, self.config.model.dtype, self.runtime.device)
            share = self._adapter_share
            return AdapterReader(self._formats, self._fitting, placed, outer, own, share, self.tower).read(source)

    @cached_property
    def _adapter_share(self) -> AdapterShare:
        """What this worker holds of adapters."""
        return AdapterShare(self._fitting.spec, WHOLE if self.ranks is None else self.ranks.part_of(self._fitting.spec))

    @cached_property
    def _formats(self) -> dict[str, AdapterFormat]:
        """Formats of adapters, which may remember what they have read."""
        return adapter_formats(self.config, self.plugins)

    def placed(self) -> PlacedAdapters:
        """Return the adapters that steps may use. Raises UserError when the engine has none."""
        if self.adapters is None:
            raise UserError("This engine has no adapters; start it with --enable-lora.")
        return self.adapters

    def drop_models(self) -> None:
        """Release models, cache and device; `open_device` and the following phases of start-up bring them back.

        A runtime that keeps freed memory returns it in `device.trim`, once nothing refers to the models any more.
        """
        self._end_steps()
        if self.adapters is not None:
            self.adapters.release()
        self.runtime.close()  # first: it may still touch pages of the cache
        self.instances = []
        self._drop_cache()

    def open_device(self) -> None:
        """Open the device, at the start or after `drop_models`."""
        self.runtime = open_runtime(self.config, self.plugins)
        self.device = Device(self.runtime)
        if self.ranks is not None:
            self.ranks.connect(self.runtime)

    def allocate_cache(self) -> None:
        """Allocate the cache and make the step runner. When this raises, neither exists."""
        # The old cache first: both may not fit.
        self._drop_cache()
        try:
            self.kv_memory = self._shared_cache()
            self._use_steps(self._step_runner(self.instances))
        except BaseException:
            self._drop_cache()
            raise

    def _shared_cache(self) -> KVMemory:
        """Allocate the cache of all models, and what transfers of its blocks need."""
        # What was needed to prepare weights may lie in the runtime's cache of freed memory.
        self.device.trim()
        cache = self.config.cache
        if self.ranks is not None:
            cache = self.ranks.cache_of(cache, self.whole)
        memory = share_cache(self.instances, cache, self.device, self.config.kv_file)
        if self.config.plugins.kv_connectors:
            memory.prepare_transfers()
        self.kv_halves.register(memory)
        return memory

    def _drop_cache(self) -> None:
        """Release the cache; does nothing while only the weights are awake."""
        if hasattr(self, "kv_memory"):
            self.kv_halves.release()
            del self.kv_memory

    def _step_runner(self, instances: Sequence[ModelInstance]) -> StepRunner:
        """Make the step runner of models with a bound cache."""
        # First, because the recordings of steps depend on the tables of the model's layers.
        if self.adapters is not None:
            self.adapters.bind(instances[0].model)
        return RunnerBuilder(
            self.config,
            self.plugins,
            self.device,
            instances,
            self.kv_memory,
            self.grammars,
            self.processors,
            self.adapters,
            self.ranks,
        ).build()

    def _use_steps(self, steps: StepRunner) -> None:
        self._steps = steps
        self.runner = steps.runner
        self.ahead = steps.ahead

    def _end_steps(self) -> None:
        """Release the step runner; does nothing without a cache."""
        if self._steps is None:
            return
        self._steps.close()
        self._steps = None
        self.ahead = None
        del self.runner

    @property
    def is_foreign(self) -> bool:
        """Whether the layers are modules of transformers, which a checkpoint can be used for only once."""
        return self.config.model.implementation == "transformers"

    @property
    def spec(self) -> ModelSpec:
        """Shape of the target model."""
        return self.instances[0].spec

    @property
    def groups(self) -> Sequence[KVGroup]:
        """Groups of layers that share a block table."""
        return self.kv_memory.groups

    @property
    def num_blocks(self) -> int:
        """Number of KV blocks."""
        return self.kv_memory.num_blocks

    def page_shape(self, ranks: int) -> PageShape:
        """Return the shape of the engine's KV pages. ranks: number of parts of a page, one of which this worker has."""
        return page_shape(self.kv_memory, self.instances, self.whole, ranks)

    @property
    def weights_nbytes(self) -> int:
        """Bytes of the prepared weights of all models."""
        return sum(instance.weights_nbytes for instance in self.instances)

    @property
    def kv_nbytes(self) -> int:
        """Bytes of the KV cache."""
        return self.kv_memory.nbytes

    @property
    def numerics(self) -> str:
        """Names of everything that results depend on: kernels, attention, dtypes."""
        return numerics_of(self.config, self.runtime, self.instances)

    def execute(self, plan: StepPlan) -> StepResult:
        """Run a plan's copies of KV blocks, then its step. Raises PluginError when a plugin's code fails."""
        if self.ahead is not None:
            return self.finish(self.begin(plan))
        with self._blaming():
            saved = self._copy(plan)
            stage = None if self.ranks is None else self.ranks.stage
            result = self.runner.execute(plan) if stage is None else stage.execute(self.runner, plan)
        result.pages = None if saved is None else saved.wait()
        return result

    def begin(self, plan: StepPlan) -> Begun:
        """Begin a step, as far as the device can run it alone. Raises PluginError when a plugin's code fails."""
        assert self.ahead is not None, "the device computes nothing alone"
        with self._blaming():
            if plan.transfers is not None or plan.copies or plan.moved_states:
                self.ahead.compute_deferred()  # the copies read what earlier steps write
            saved = self._copy(plan)
            begun = self.ahead.begin(plan)
        begun.saved = saved
        return begun

    def finish(self, begun: Begun) -> StepResult:
        """Wait for a step that was begun. Raises PluginError when a plugin's code fails."""
        assert self.ahead is not None, "the device computes nothing alone"
        with self._blaming():
            result = self.ahead.finish(begun)
        result.pages = None if begun.saved is None else begun.saved.wait()
        return result

    def _copy(self, plan: StepPlan) -> SavedPages | None:
        """Make the plan's copies of KV blocks; returns the saved pages."""
        copies = [*plan.copies, *self.runner.batch.tables.copies(plan.moved_states)]
        if plan.transfers is not None:
            return self.kv_memory.transfer(plan.transfers, copies)
        self.kv_memory.copy(copies)
        return None

    def close(self) -> None:
        """Stop all threads and release the device."""
        if self.saved is not None:
            self.saved.close()
        if self._steps is not None:
            self._steps.close()
        if self.processors is not None:
            self.processors.close()
        # Without models the device is closed already; see `drop_models`.
        if self.instances:
            self.runtime.close()

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.phases.append((name, time.perf_counter() - begin))

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        """Turn errors of the device into UserError: no plugin is at fault, and a start without one would not help."""
        try:
            yield
        except Exception as error:
            runtime = getattr(self, "runtime", None)
            said = runtime.meaning(error) if isinstance(runtime, ExplainsFailures) else None
            if said is None:
                raise
            raise UserError(said) from error

    @contextlib.contextmanager
    def _blaming(self) -> Iterator[None]:
        """Turn exceptions of a plugin's code into PluginError."""
        try:
            yield
        except Exception as error:
            self.plugins.blame(error)
            raise
