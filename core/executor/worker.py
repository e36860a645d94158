"""The worker: one device, the models on it, their KV cache and the runner of steps.

Owns: the order of start-up (device, checkpoint, weights, cache) and the time of each phase.
Never does: choose plugins (the configuration did), build a model (`instance.build` does) or schedule.
Called by: executors.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Iterator, Sequence

from core.api.config import EngineConfig
from core.api.errors import UserError
from core.api.kv_transfer import Page
from core.api.module_spec import ModelSpec
from core.api.specs import KVGroup
from core.api.step_plan import MOST_FORCED, StepPlan, StepResult
from core.api.weights import WeightsState
from core.executor.batch import PersistentBatch
from core.executor.canary import state_of
from core.executor.checked_proposer import CheckedProposer
from core.executor.device import Device
from core.executor.draft_instance import build_draft, draft_pass, heads_pass
from core.executor.draft_pass import DraftPass
from core.executor.forced_text import ForcedTexts
from core.executor.forward import ForwardPass, recorder_of
from core.executor.grammar_backends import GrammarBackends
from core.executor.grammars import Grammars
from core.executor.heads_pass import HeadsPass
from core.executor.host_memory import release_unused_memory
from core.executor.instance import (
    Checkpoint,
    ModelInstance,
    bind_cache,
    build,
    load_plugin,
    max_step_tokens,
    open_checkpoint,
    open_runtime,
    share_cache,
    shared_parts,
)
from core.executor.kept_tensors import KeptTensors
from core.executor.kept_weights import KeptWeights
from core.executor.logits_processors import LogitsProcessors
from core.executor.model_runner import ModelRunner
from core.executor.overlay import overlaid
from core.executor.pooled import pooler_of
from core.executor.processor_loading import load_processors
from core.executor.spilled_weights import SpilledWeights
from core.executor.step_buffers import StepBuffers
from core.executor.steps_ahead import Begun, StepsAhead
from core.models.decoder import Decoder
from core.models.fallback.model import ModuleModel
from core.models.logit_rows import logit_rows
from core.models.prepared import Recorder
from core.plugin.contracts import Downloads, Loader, Proposer, Uploads
from core.plugin.table import PluginTable
from core.sampling.acceptance import acceptance_rule
from core.sampling.sampler import Sampler

logger = logging.getLogger(__name__)


class Worker:
    """Everything that runs on one device.

    runtime, device: the opened device, and what is allocated on it.
    instances: the models; the first one is asked for tokens.
    kv_memory: the cache that they share.
    runner: runs the steps.
    base_files: of the checkpoint.
    kept_tensors: those of updates that nobody could read again.
    spilled: the weights in use, as a sleep of level 1 writes them; None: this engine never sleeps.
    grammars: the grammars of sequences, which another thread may have prepared.
    processors: what changes logits of requests; None: nothing does.
    phases: (name, seconds) of the start.
    state: weights and tables for the state canary; None without one.
    ahead: the steps in flight of a device that computes in its own time; None: each step is waited for.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.phases: list[tuple[str, float]] = []
        self.ahead: StepsAhead | None = None
        drafts = () if config.draft is None else config.draft.plugins.table
        self.plugins = PluginTable(config.plugins.table + drafts)
        self.kept_tensors = KeptTensors(config.tensors_file)
        self.spilled = SpilledWeights(config) if config.sleeps else None
        self._guessing: CheckedProposer | None = None
        with self._blaming(), contextlib.ExitStack() as undo:
            with self._phase("open device"):
                self.open_device()
                undo.callback(self.runtime.close)
            if config.weights_file is not None:
                self._check_keeping()
            self.processors = self._logits_processors()
            with self._phase("read checkpoint"):
                checkpoint = self.open_checkpoint(config.weights)
                self.base_files = checkpoint.manifest.files
                self._kept = self._kept_weights(checkpoint)
                if self._kept is not None:
                    checkpoint = dataclasses.replace(checkpoint, prepared=self._kept.find())
            with self._phase("load weights"):
                self.instances = self.build_models(checkpoint, self._recorder())
                del checkpoint
                weights = self.instances[0].model.weights
                self.state = state_of({"weights": weights}) if config.state_canary else None
                release_unused_memory()
            with self._phase("allocate KV cache"):
                self.kv_memory = share_cache(self.instances, config.cache, self.device)
            self.grammars = self._grammars()
            self._use_runner()
            if self._kept is not None:
                self._kept.keep()
            undo.pop_all()  # nothing failed: the device stays open until `close`

    def open_loader(self, state: WeightsState) -> Loader:
        """The loader of the checkpoint with what was laid over it."""
        loader: Loader = load_plugin(self.config, self.plugins, "loader", self.config.plugins.loader)
        return overlaid(state, self.kept_tensors)(loader) if state.sources else loader

    def open_checkpoint(self, state: WeightsState) -> Checkpoint:
        """The configured checkpoint with what was laid over it; no tensor is read. Raises CheckpointError."""
        dtype = self.runtime.activation_dtype(self.config.model.dtype)
        wrap = overlaid(state, self.kept_tensors) if state.sources else None
        return open_checkpoint(self.config, self.plugins, dtype, wrap)

    def build_models(self, checkpoint: Checkpoint, recorder: Recorder | None) -> list[ModelInstance]:
        """The models without a cache: the one that is asked for tokens, and its draft. recorder: see `Packing`."""
        config = self.config
        limits = config.scheduler
        rows = logit_rows(checkpoint.spec.vocab_size, limits.max_num_seqs, limits.num_speculative_tokens)
        model = build(config, checkpoint, self.device, self.plugins, max_logits=rows, recorder=recorder)
        if config.draft is None or config.draft.spec.decoder is None:
            return [model]
        return [model, build_draft(config, config.draft, model, self.device, self.plugins)]

    def use_models(self, instances: list[ModelInstance]) -> None:
        """Compute with other models of the same shapes from now on, on the cache that is there.

        No sequence of an earlier plan is known afterwards.
        """
        self._end_proposer()
        bind_cache(instances, self.kv_memory)
        self.instances = instances
        self._use_runner()

    def drop_models(self) -> None:
        """Give models, cache and device back; `open_device` and what follows it at the start bring them back."""
        self._end_proposer()
        self.runtime.close()  # first: it may still touch pages of the cache
        self.instances = []
        self.ahead = None
        del self.runner, self.kv_memory

    def open_device(self) -> None:
        """Open the device, at the start or after `drop_models`."""
        self.runtime = open_runtime(self.config, self.plugins)
        self.device = Device(self.runtime)

    def allocate_cache(self) -> None:
        """The cache of the models, and what runs steps."""
        self.kv_memory = share_cache(self.instances, self.config.cache, self.device)
        self._use_runner()

    def _use_runner(self) -> None:
        """Make what runs the steps of the models whose cache is bound."""
        self.runner = self._runner(self.instances[0].model)
        self.ahead = None
        if isinstance(self.runtime, Downloads) and self.runner.batch.rows.on_device is not None:
            self.ahead = StepsAhead(self.runner, self.runtime)

    def _recorder(self) -> Recorder | None:
        """Who wants to know of prepared kernels."""
        if self._kept is not None:
            return self._kept.note
        return None if self.spilled is None else self.spilled.note

    def _check_keeping(self) -> None:
        """Raises UserError where weights cannot be kept."""
        config = self.config
        unfit = None
        if self.is_foreign:
            unfit = "layers of transformers"
        elif self.runtime.device.type != "cpu":
            unfit = f"--device {config.device}"
        if unfit is not None:
            raise UserError(f"--keep-weights {config.keep_weights}: cannot be used with {unfit}; leave it out.")

    def _kept_weights(self, checkpoint: Checkpoint) -> KeptWeights | None:
        """The memory for weights that outlives this process; None where none is wanted, or the checkpoint needs none."""
        config = self.config
        if config.weights_file is None:
            return None
        if checkpoint.prepared is not None:
            logger.warning("--keep-weights has no effect: a converted model is ready to be used.")
            return None
        return KeptWeights(config, config.weights_file, checkpoint.manifest)

    def _runner(self, model: Decoder | ModuleModel) -> ModelRunner:
        """The runner of a model whose cache is bound."""
        config = self.config
        buffers = StepBuffers(
            self._max_num_tokens,
            config.scheduler.max_num_seqs,
            self._max_table_length,
            model.max_logits,
            self.runtime.device,
            len(self.groups),
            self.runtime if isinstance(self.runtime, Uploads) else None,
            self._num_sampled(model),
        )
        recorder = recorder_of(model, self.runtime, buffers, padding=self._padding, eager=config.model.enforce_eager)
        forward = ForwardPass(model, buffers, recorder, self._group_of_layers())
        batch = PersistentBatch(buffers, config.cache.block_size, self.groups, self.grammars, self.processors)
        kernels = model.kernels
        rule = acceptance_rule(config.acceptance)
        sampler = Sampler(
            self._vocab_size,
            kernels.race,
            kernels.logprobs,
            kernels.masked_race,
            rule,
            mode=config.model.logprobs_mode,
            custom=self.processors,
            home=self.runtime.device.type,
        )
        drafting = self._draft_pass(batch, sampler)
        proposer = self._guessing = self._proposer(model) if config.draft is None else None
        tree = None if proposer is None else proposer.tree
        pooling = config.model.pooling
        pooler = None if pooling is None else pooler_of(pooling, forward)
        return ModelRunner(
            forward,
            batch,
            sampler,
            proposer,
            self._most_forced,
            drafting,
            tree=tree,
            verifies_trees=self._verifies_trees,
            pooler=pooler,
        )

    def _logits_processors(self) -> LogitsProcessors | None:
        """Those that are configured; None without any."""
        if not self.config.plugins.logits_processors:
            return None
        return LogitsProcessors(load_processors(self.config, self.plugins))

    @property
    def _vocab_size(self) -> int:
        return self.config.model.vocab_size or self.spec.vocab_size

    def _grammars(self) -> Grammars:
        backends = GrammarBackends(self.config, self.plugins, self._vocab_size)
        texts = ForcedTexts(backends.encode, backends.token_bytes)
        return Grammars(backends.load, texts, self._vocab_size)

    def _num_sampled(self, model: Decoder | ModuleModel) -> int:
        """Rows that the device samples by itself, and whose tokens it brings back in its own time."""
        if not isinstance(self.runtime, Downloads) or model.kernels.race is None:
            return 0
        return min(model.max_logits, self._max_num_tokens)

    def _draft_pass(self, batch: PersistentBatch, sampler: Sampler) -> DraftPass | HeadsPass | None:
        """The passes of the draft or of draft heads; None without either."""
        config = self.config
        if config.draft is None:
            return None
        if config.draft.spec.decoder is None:
            return heads_pass(config, self.instances[0], self.plugins, batch, sampler)
        target, draft = self.instances
        return draft_pass(
            self.config,
            draft,
            target,
            self.device,
            batch,
            sampler,
            padding=self._padding,
            verifies_trees=self._verifies_trees,
        )

    @property
    def is_foreign(self) -> bool:
        """Whether the layers are those of transformers, which a checkpoint brings with it once."""
        return self.config.model.implementation == "transformers"

    @property
    def spec(self) -> ModelSpec:
        """The shape of the model that is asked for tokens."""
        return self.instances[0].spec

    @property
    def groups(self) -> Sequence[KVGroup]:
        """Layers that share a block table."""
        return self.kv_memory.groups

    @property
    def num_blocks(self) -> int:
        """KV blocks."""
        return self.kv_memory.num_blocks

    @property
    def weights_nbytes(self) -> int:
        """Bytes of prepared weights."""
        return sum(instance.weights_nbytes for instance in self.instances)

    @property
    def kv_nbytes(self) -> int:
        """Bytes of the cache."""
        return self.kv_memory.nbytes

    @property
    def numerics(self) -> str:
        """Names what results depend on: kernels, attention, dtypes."""
        backends: set[str] = set()
        for instance in self.instances:
            backends |= instance.attention_numerics
        attention = ",".join(sorted(backends))
        kernels = self.runtime.kernels.numerics
        return f"{kernels}/{attention}/{self.config.model.dtype}/kv-{self.config.cache.dtype}"

    @property
    def _max_num_tokens(self) -> int:
        """Most tokens of one step."""
        return max_step_tokens(self.config)

    @property
    def _max_table_length(self) -> int:
        """Blocks in the longest row of a block table."""
        config = self.config
        length = config.model.max_model_len + config.scheduler.num_speculative_tokens + 1
        num_blocks = -(-length // config.cache.block_size)
        num_state_blocks = [group.num_state_blocks + group.num_spare_blocks for group in self.groups]
        return max(num_blocks, *num_state_blocks)

    @property
    def _padding(self) -> bool:
        """Whether all attention backends take steps with padded rows and sequences."""
        names = set(self.config.plugins.attention.values())
        if self.config.draft is not None:
            names |= set(self.config.draft.plugins.attention.values())
        capabilities = [self.plugins.capabilities("attention", name) for name in names]
        return all(declared.get("padding", False) for declared in capabilities)

    def execute(self, plan: StepPlan) -> StepResult:
        """Make the plan's copies of KV blocks, then run the step. Raises PluginError when a plugin's code fails."""
        if self.ahead is not None:
            return self.finish(self.begin(plan))
        try:
            pages = self._copy(plan)
            result = self.runner.execute(plan)
        except Exception as error:
            self.plugins.blame(error)
            raise
        result.pages = pages
        return result

    def begin(self, plan: StepPlan) -> Begun:
        """The same, as far as the device does it alone. Raises PluginError when a plugin's code fails."""
        assert self.ahead is not None, "the device computes nothing alone"
        try:
            pages = self._copy(plan)
            begun = self.ahead.begin(plan)
        except Exception as error:
            self.plugins.blame(error)
            raise
        begun.pages = pages
        return begun

    def finish(self, begun: Begun) -> StepResult:
        """Wait for a step that was begun. Raises PluginError when a plugin's code fails."""
        assert self.ahead is not None, "the device computes nothing alone"
        try:
            result = self.ahead.finish(begun)
        except Exception as error:
            self.plugins.blame(error)
            raise
        result.pages = begun.pages
        return result

    def _copy(self, plan: StepPlan) -> list[Page] | None:
        """The copies of KV blocks in front of a step; returns the pages that it saves."""
        pages: list[Page] | None = None
        if plan.transfers is not None:
            pages = self.kv_memory.transfer(plan.transfers)
        if plan.copies:
            self.kv_memory.copy(plan.copies)
        return pages

    def close(self) -> None:
        """Give threads and memory back."""
        if self._kept is not None:
            self._kept.close()
        self._end_proposer()
        if self.processors is not None:
            self.processors.close()
        if self.instances:
            self.runtime.close()

    def _end_proposer(self) -> None:
        """Give what guesses by itself back; there is none without a runner."""
        if self._guessing is not None:
            self._guessing.close()
            self._guessing = None

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.phases.append((name, time.perf_counter() - begin))

    @contextlib.contextmanager
    def _blaming(self) -> Iterator[None]:
        """Raise PluginError in place of what a plugin's code raised."""
        try:
            yield
        except Exception as error:
            self.plugins.blame(error)
            raise

    def _group_of_layers(self) -> list[int]:
        """The KV group of each layer."""
        return self.instances[0].groups

    @property
    def _verifies_trees(self) -> bool:
        """Whether all layers can see the drafts of a tree side by side, and a draft is judged by its token alone."""
        names = set(self.config.plugins.attention.values())
        able = all(self.plugins.capabilities("attention", name).get("tree", False) for name in names)
        has_states = any(group.kind == "state" for group in self.groups)
        return able and not has_states and self.config.acceptance is None

    @property
    def _most_forced(self) -> int:
        """Tokens of forced text that a step may verify: as the scheduler sees it."""
        has_way_back = all(group.num_spare_blocks for group in self.groups if group.kind == "state")
        if not has_way_back:
            return 0
        return min(MOST_FORCED, self.config.scheduler.num_speculative_tokens or MOST_FORCED)

    def _proposer(self, model: Decoder | ModuleModel) -> CheckedProposer | None:
        name = self.config.plugins.speculative
        if name is None:
            return None
        parts = shared_parts(model.weights)
        proposer: Proposer = load_plugin(self.config, self.plugins, "speculative", name, options=parts)
        row = self.plugins.row("speculative", name)
        return CheckedProposer(proposer, row, self.spec.vocab_size, self.plugins.blamed)
