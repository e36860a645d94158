"""Construction of the step runner from the models of a worker.

Owns: which buffers, passes and proposer the configuration means, and their sizes. Never does: load a model, or run a step.
Called by: the worker, at the start and whenever its models change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.api.config import EngineConfig
from core.api.step_plan import MOST_FORCED
from core.plugin.table import PluginTable
from core_runtime.contracts import Downloads, MovesStates, Proposer, Uploads
from core_runtime.executor.adapters.placed import PlacedAdapters
from core_runtime.executor.answers.answer_facts import FactKeeper
from core_runtime.executor.answers.pooled import pooler_of
from core_runtime.executor.cache.kv_memory import KVMemory
from core_runtime.executor.constraints.grammars import Grammars
from core_runtime.executor.device import Device
from core_runtime.executor.drafts.checked_proposer import CheckedProposer
from core_runtime.executor.drafts.heads import HeadsPass
from core_runtime.executor.drafts.instance import draft_pass, heads_pass
from core_runtime.executor.drafts.passes import DraftPass
from core_runtime.executor.drafts.proposals import Proposals
from core_runtime.executor.forward import ForwardPass
from core_runtime.executor.instance import ModelInstance, shared_parts
from core_runtime.executor.model_runner import ModelRunner
from core_runtime.executor.plugin_loading import load_plugin
from core_runtime.executor.processors.logits_processors import LogitsProcessors
from core_runtime.executor.ranks import Ranks, RankSampler
from core_runtime.executor.steps.ahead import StepsAhead
from core_runtime.executor.steps.batch import PersistentBatch
from core_runtime.executor.steps.buffers import StepBuffers
from core_runtime.executor.steps.recordable import recorder_of
from core_runtime.executor.tail_rows import Tail
from core_runtime.models.decoder import Decoder
from core_runtime.models.state_ops.cross_attention import encoder_shape
from core_runtime.models.told_experts import ToldExperts
from core_runtime.sampling.bitmask import num_words
from core_runtime.sampling.drafts.acceptance import acceptance_rule
from core_runtime.sampling.sampler import Sampler
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.draft_config import draft_of
from core_runtime.specs.tail import first_of_tail, skips_rows
from core_tokens.answer_facts import ROUTED_EXPERTS, SAMPLING_MASK


@dataclass(frozen=True, slots=True)
class StepRunner:
    """A runner and its helpers. The worker owns it.

    runner: runs steps.
    ahead: steps in flight of an asynchronous device; None: each step is waited for.
    proposer: plugin that drafts without a model of ours; None: there is none.
    """

    runner: ModelRunner
    ahead: StepsAhead | None
    proposer: CheckedProposer | None

    def close(self) -> None:
        """Close the proposer."""
        if self.proposer is not None:
            self.proposer.close()


class RunnerBuilder:
    """Builds step runners.

    instances: models with a bound cache; the first is the target, the second, if any, its draft.
    memory: the cache.
    grammars, processors, adapters, ranks: see `Worker`.
    """

    def __init__(
        self,
        config: EngineConfig,
        plugins: PluginTable,
        device: Device,
        instances: Sequence[ModelInstance],
        memory: KVMemory,
        grammars: Grammars,
        processors: LogitsProcessors | None,
        adapters: PlacedAdapters | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self._config = config
        self._plugins = plugins
        self._device = device
        self._runtime = device.runtime
        self._instances = instances
        self._target = instances[0]
        self._model = instances[0].model
        self._groups = memory.groups
        self._grammars = grammars
        self._processors = processors
        self._adapters = adapters
        self._ranks = ranks

    def build(self) -> StepRunner:
        """Build a runner without any sequences."""
        config = self._config
        buffers = self._buffers()
        forward = self._forward(buffers)
        batch = PersistentBatch(
            buffers,
            config.cache.block_size,
            self._groups,
            self._grammars,
            self._processors,
            None if self._adapters is None else self._adapters.rows,
            moves_states=self._moves_states,
            encoder_shape=encoder_shape(self._target.spec) if isinstance(self._target.spec, DecoderSpec) else None,
        )
        sampler = self._sampler()
        drafting = self._drafting(batch, sampler)
        pooling = config.model.pooling
        pooler = None if pooling is None else pooler_of(pooling, forward)
        proposer = self._proposer()
        proposals = None
        if proposer is not None:
            proposals = Proposals(proposer, batch, forward, verifies_trees=self._verifies_trees)
        runner = ModelRunner(
            forward,
            batch,
            sampler,
            proposals,
            self._max_forced,
            drafting,
            pooler=pooler,
            share=None if self._ranks is None else self._ranks.share,
            facts=self._facts(),
        )
        ahead = None
        if isinstance(self._runtime, Downloads) and batch.rows.on_device is not None:
            ahead = StepsAhead(runner, self._runtime)
        return StepRunner(runner, ahead, proposer)

    def _buffers(self) -> StepBuffers:
        return StepBuffers(
            self._config.limits,
            self._max_table_length,
            self._runtime.device,
            len(self._groups),
            self._runtime if isinstance(self._runtime, Uploads) else None,
            self._num_sampled,
            num_words(self._vocab_size),
            adapters=self._adapters is not None,
            rotary=isinstance(self._model, Decoder) and self._model.spare is not None,
            state_blocks=[group.num_state_blocks for group in self._groups],
        )

    def _forward(self, buffers: StepBuffers) -> ForwardPass:
        config = self._config
        rows_each = config.scheduler.rows_per_sequence
        recorder = recorder_of(
            self._model,
            self._runtime,
            buffers,
            padding=self._padding,
            eager=config.model.enforce_eager,
            compilation=config.compilation,
            rows_each=rows_each,
            adapters=self._adapters is not None and self._adapters.recordable,
        )
        return ForwardPass(
            self._model,
            buffers,
            recorder,
            self._target.groups,
            rows_each=rows_each,
            ragged=self._padding,
            adapters=self._adapters,
            tail=self._tail(),
        )

    def _tail(self) -> Tail | None:
        """Return the last blocks of the model, where these leave rows out."""
        first = first_of_tail(self._target.spec) if skips_rows(self._config) else None
        return Tail(self._model, first) if first is not None and isinstance(self._model, Decoder) else None

    def _sampler(self) -> Sampler:
        config = self._config
        kernels = self._model.kernels
        kind = Sampler if self._ranks is None else self._ranks.sampler()
        sampler = kind(
            self._vocab_size,
            kernels.race,
            kernels.logprobs,
            kernels.masked_race,
            acceptance_rule(config.acceptance),
            mode=config.model.logprobs_mode,
            custom=self._processors,
            home=self._runtime.device.type,
            tells_supports=SAMPLING_MASK in config.model.tells,
        )
        if isinstance(sampler, RankSampler) and self._ranks is not None:
            sampler.group = self._ranks.group
        return sampler

    def _facts(self) -> FactKeeper | None:
        """Make what keeps the facts that outputs carry; None: they carry tokens alone."""
        tells = self._config.model.tells
        if ROUTED_EXPERTS not in tells:
            return FactKeeper(None) if tells else None
        model = self._model
        assert isinstance(model, Decoder), "the configuration tells the experts of no other model"
        return FactKeeper(ToldExperts(model, self._config.limits.tokens))

    def _drafting(self, batch: PersistentBatch, sampler: Sampler) -> DraftPass | HeadsPass | None:
        """Make the passes of the draft or of draft heads; None without either."""
        config = self._config
        described = draft_of(config)
        if described is None:
            return None
        if described.spec.decoder is None:
            return heads_pass(config, self._target, self._plugins, batch, sampler)
        _, draft = self._instances
        return draft_pass(
            config,
            draft,
            self._target,
            self._device,
            batch,
            sampler,
            padding=self._padding,
            verifies_trees=self._verifies_trees,
        )

    def _proposer(self) -> CheckedProposer | None:
        """Load the proposer plugin; None if the core runs a draft, or drafting is off."""
        config = self._config
        name = config.plugins.speculative
        if name is None or config.draft is not None:
            return None
        if self._ranks is not None and not self._ranks.leads:
            return None
        parts = shared_parts(self._model.weights)
        proposer: Proposer = load_plugin(config, self._plugins, "speculative", name, options=parts)
        row = self._plugins.row("speculative", name)
        return CheckedProposer(proposer, row, self._vocab_size, self._plugins.blamed)

    @property
    def _vocab_size(self) -> int:
        """Tokens in a row of logits."""
        return self._config.model.vocab_size or self._target.spec.vocab_size

    @property
    def _num_sampled(self) -> int:
        """Rows that the device samples by itself, with asynchronous download; 0: the host samples."""
        if not isinstance(self._runtime, Downloads) or self._model.kernels.race is None:
            return 0
        return min(self._config.limits.logit_rows, self._config.limits.tokens)

    @property
    def _max_table_length(self) -> int:
        """Blocks of the longest row of a block table."""
        config = self._config
        length = config.model.max_model_len + config.scheduler.num_speculative_tokens + 1
        num_blocks = -(-length // config.cache.block_size)
        num_state_blocks = [2 * group.num_state_blocks for group in self._groups]
        return max(num_blocks, *num_state_blocks)

    @property
    def _padding(self) -> bool:
        """Whether all attention backends accept steps with padded rows and sequences."""
        names = set(self._config.plugins.attention.values())
        draft = draft_of(self._config)
        if draft is not None:
            names |= set(draft.plugins.attention.values())
        capabilities = [self._plugins.capabilities("attention", name) for name in names]
        return all(declared.get("padding", False) for declared in capabilities)

    @property
    def _verifies_trees(self) -> bool:
        """Whether all layers accept the drafts of a tree, and drafts are judged by their token alone."""
        names = set(self._config.plugins.attention.values())
        able = all(self._plugins.capabilities("attention", name).get("tree", False) for name in names)
        # A recurrent state has no keys to mask, so it cannot hold several branches.
        has_states = any(group.kind == "state" for group in self._groups)
        # The experts of a tree's tokens would not lie in the order of their positions.
        tells_experts = ROUTED_EXPERTS in self._config.model.tells
        return able and not (has_states or tells_experts) and self._config.acceptance is None

    @property
    def _moves_states(self) -> bool:
        """Whether all layers with a state can read it in other blocks than those to which they write it."""
        layers = [layer for group in self._groups if group.kind == "state" for layer in group.layers]
        mixers = self._model.mixers
        return all(layer < len(mixers) and isinstance(mixers[layer].backend, MovesStates) for layer in layers)

    @property
    def _max_forced(self) -> int:
        """Maximum tokens of forced text that a step can verify, as the scheduler sees it."""
        # A recurrent state forgets rejected tokens only with spare blocks, which hold a copy from before verification.
        has_way_back = all(group.num_spare_blocks for group in self._groups if group.kind == "state")
        if not has_way_back:
            return 0
        return min(MOST_FORCED, self._config.scheduler.num_speculative_tokens or MOST_FORCED)
