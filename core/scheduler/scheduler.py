"""One step of the engine: who computes how many tokens, and what came of it.

Owns: the order of the parts of a step, and what happens when a step or an invariant breaks. Never does: compute, sample,
decode text, or know blocks beyond asking the KV manager. Called by: the engine loop.

There is one rule: `num_computed_tokens` of a sequence catches up with its known tokens (prompt, output and drafts)
under the step's token budget. Prefill, chunks, decode, prefix hits, recomputation and the verification of drafts are
all that rule.

The running list is kept in the policy's order, so its last member is the one to preempt. A sequence is admitted when
blocks for all its known tokens are free, and takes them at once: only decoding makes anybody need more.

Further steps may be planned before the results of earlier ones are there: each sequence that samples is taken to get one
token, or up to so many more as it has drafts, and what turns out to have ended computes tokens too many, which are dropped.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from copy import copy

from core.api.config import SchedulerConfig
from core.api.errors import RequestError
from core.api.kv_transfer import Page
from core.api.messages import EngineOutput, EngineRequest, SchedulerStats
from core.api.policy import SchedulingPolicy
from core.api.step_plan import SequenceKey, StepResult
from core.kv.integrity import IntegrityError
from core.kv.manager import KVManager
from core.scheduler.admission import Admission
from core.scheduler.integrity import check_sequences
from core.scheduler.planning import StepPlanner
from core.scheduler.results import ResultReader, StepOutputs
from core.scheduler.sequence import SequenceState, SequenceStatus
from core.scheduler.state import SchedulerState
from core.scheduler.step import Step
from core.scheduler.step_advice import AdviceFactory, FixedAdvice, StepAdvice
from core.scheduler.step_cost import StepCost


class Scheduler:
    """Plans steps, and reads their results in the same order.

    in_flight: steps without a result, the oldest first.

    make_kv:       an empty KV manager for the executor's pool.
    clock:         seconds, of the clock that deadlines are told in.
    max_in_flight: how many steps may be without a result. It is 1 where states come back from drafts: a plan says from
                   where they go on.
    lockstep:      whether a step that computes nothing is computed like any other, so that it waits for its result.
    vectorized:    False handles every sequence on its own; the plans are the same.
    cost:          of the executor's steps, as far as it is known; with a limit of stalls it learns from each of them.
    advise:        makes the choice of drafts where `adaptive_drafts` asks for one; None: always the most.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        make_kv: Callable[[], KVManager],
        policy: SchedulingPolicy,
        *,
        clock: Callable[[], float] = time.monotonic,
        max_in_flight: int = 2,
        lockstep: bool = False,
        vectorized: bool = True,
        cost: StepCost | None = None,
        advise: AdviceFactory | None = None,
    ) -> None:
        self.config = config
        self.max_in_flight = max_in_flight
        self.lockstep = lockstep
        self.in_flight: deque[Step] = deque()
        self._make_kv = make_kv
        self._vectorized = vectorized
        self._cost = StepCost() if cost is None else cost
        self._advice: StepAdvice | None = None
        if config.num_speculative_tokens:
            if advise is None or not config.adaptive_drafts:
                self._advice = FixedAdvice(config)
            else:
                self._advice = advise(config, self._cost)
        self._state = SchedulerState(config, make_kv(), policy, clock, self._cost, self._advice)
        if self._state.kv.states.can_roll_back:
            self.max_in_flight = 1
        self._admission = Admission(self._state)
        self._num_steps = 0
        self._token_budget = config.max_num_batched_tokens
        if not config.enable_chunked_prefill:
            self._token_budget = max(self._token_budget, config.max_model_len)
        self._mixed_budget = self._token_budget
        if config.enable_chunked_prefill and config.max_num_mixed_batched_tokens:
            self._mixed_budget = config.max_num_mixed_batched_tokens

    @property
    def kv(self) -> KVManager:
        """The KV manager in use."""
        return self._state.kv

    @property
    def at_work(self) -> EngineRequest | None:
        """The request that is being handled: when something raises, that is whom `mend` blames."""
        sequence = self._state.at_work
        return None if sequence is None else sequence.request

    @property
    def waits_for_kv(self) -> bool:
        """Whether somebody waits for keys and values that are being loaded, so that an empty plan is no fault."""
        return len(self._state.awaiting) > 0

    def add(self, request: EngineRequest) -> None:
        """Queue a sequence. One that can never run ends with an error output of the next `finish`.

        Raises RequestError when a live sequence has the same request id and choice.
        """
        state = self._state
        if state.roster.find(request.key) is not None:
            raise RequestError(
                f"The request id '{request.request_id}' (choice {request.choice}) is in use; choose another one.",
                param="request_id",
            )
        pools = request.pooling is not None
        problem = state.limits.why_never(len(request.prompt_token_ids), pools=pools)
        if not problem:
            problem = state.limits.why_not_resumed(request)
        if problem:
            output = EngineOutput(*request.key, 0, [], handle=request.handle)
            output.finish_reason = "error"
            output.stop_reason = problem
            state.tell(output)
        else:
            state.enter(request)

    def compute_next(self, request: EngineRequest) -> None:
        """Have a sequence computed before all others, alone, once it finds a block. Nothing happens while its key is live."""
        if self._state.roster.find(request.key) is None:
            self._state.enter(request, alone=True)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Forget all choices of these requests; unknown ids are ignored. Nothing is reported, blocks come back."""
        for request_id in request_ids:
            keys = self._state.roster.keys_of(request_id)
            self.abort_choices(keys)

    def abort_choices(self, keys: Iterable[SequenceKey]) -> None:
        """Forget single sequences; unknown keys are ignored. Nothing is reported, blocks come back."""
        for key in keys:
            sequence = self._state.roster.find(key)
            if sequence is not None:
                self._state.release(sequence)

    def has_unfinished(self) -> bool:
        """Whether anything waits or runs, or the worker or the client must still hear of an end."""
        return bool(self.in_flight) or self.wants_step()

    @property
    def num_live(self) -> int:
        """Sequences that have not ended."""
        return len(self._state.roster)

    def wants_step(self) -> bool:
        """Whether there is a reason to plan another step; otherwise only those in flight are to be finished."""
        return self._state.has_unfinished

    def schedule(self) -> Step:
        """Plan the next step: first the sequences that decode, then prompts that have begun, then the ones that wait.

        The plan may be empty. In `removed` and `new` the same slot means: drop the old sequence, then add the new one.
        A step is in flight until it is finished or fails, unless it is idle and nobody works in lockstep with this engine:
        then there is nothing to wait for, and it may be finished at once.
        """
        if len(self.in_flight) >= self.max_in_flight:
            raise IntegrityError("steps_in_flight", f"{len(self.in_flight)} steps wait for their results")
        state = self._state
        self._num_steps += 1
        state.step_number = self._num_steps
        state.expire()
        state.drafts.begin_step(state.running)
        planner = StepPlanner(state, self._token_budget, self._mixed_budget, vectorized=self._vectorized)
        if not state.seats.suspects or not self._admission.try_suspect(planner):
            self._plan(planner)
        state.at_work = None
        step = planner.finish()
        step.number = self._num_steps
        if self.lockstep or not step.is_idle:
            self._begin(step)
        return step

    def finish(self, step: Step, result: StepResult) -> StepOutputs:
        """Take the results of the oldest step in; sequences that left since then are skipped.

        Returns an output for each sequence with new tokens or an end. Raises IntegrityError for any other step.
        """
        if self.lockstep or not step.is_idle:
            self._take_oldest(step)
            self._settle_transfers(step, result.pages)
        state = self._state
        if result.proposer_off:
            state.drafts.switch_off(result.proposer_off)
        if state.recorder:
            state.recorder.count(step, result, state.drafts)
        seconds = 0.0
        if state.step_clock is not None:
            seconds = state.step_clock.end(step, result)
        if state.stall is not None:
            state.stall.finish(step, result, state.running)
        outputs = ResultReader(state, step, result, vectorized=self._vectorized).run()
        state.drafts.finish_step(step, result, seconds)
        state.at_work = None
        return outputs

    def fail(self, step: Step, sentence: str) -> StepOutputs:
        """The oldest step could not be computed.

        It counts as never begun, and so do the steps behind it, whatever became of them: nothing is lost but the work.

        A sequence that was alone in it ends with `sentence`. Several are suspects: each is computed again, alone, until
        it has got a token, so that only the guilty one ends. Raises IntegrityError for any other step.
        """
        state = self._state
        self._take_oldest(step)
        self._undo(step)
        state.stats.num_failed_steps += 1
        computed = step.sequences()
        suspects = [sequence for sequence in computed if sequence.status is SequenceStatus.RUNNING]
        self.give_up(but=suspects)
        if len(computed) == 1:
            for sequence in suspects:
                output = state.end(sequence, "error", sentence, keep_cached=False)
                state.tell(output)
        else:
            for sequence in suspects:
                state.suspend(sequence)
                state.seats.clear(sequence)
            state.seats.suspect(suspects)
        return StepOutputs(state.take_told())

    def give_up(self, but: Sequence[SequenceState] = ()) -> None:
        """Steps in flight will never have a result: their sequences wait again, except for `but`."""
        state = self._state
        while self.in_flight:
            step = self.in_flight.popleft()
            self._undo(step)
            for sequence in step.sequences():
                if sequence.status is SequenceStatus.RUNNING and sequence not in but:
                    state.suspend(sequence)
                    if sequence not in state.seats.suspects:
                        state.roster.queue_again(sequence)

    def mend(self, error: Exception) -> StepOutputs:
        """An operation of this class raised `error`: end the sequence that it was about, and start all others over.

        The cache starts empty and every sequence waits again; tokens already given are kept, so clients only
        see a delay. The worker is told to forget every slot.
        """
        self._state.stats.num_violations += 1
        return self._begin_anew(self._state.at_work, error)

    def start_over(self) -> StepOutputs:
        """What the executor held is gone: everybody waits again, with an empty cache and the tokens that they have."""
        return self._begin_anew(None, None)

    def end_all(self) -> list[EngineOutput]:
        """End every sequence with finish reason `abort`."""
        state = self._state
        ended = [state.end(sequence, "abort", None, keep_cached=True) for sequence in list(state.roster)]
        return state.take_told() + ended

    @property
    def lasting_stats(self) -> SchedulerStats:
        """The statistics that every copy is made of, for fields which are not the scheduler's own."""
        return self._state.stats

    def _begin_anew(self, guilty: SequenceState | None, error: Exception | None) -> StepOutputs:
        """A new state with an empty cache adopts all sequences; one that is guilty of `error` ends."""
        state = self._state
        fresh = SchedulerState(self.config, self._make_kv(), state.policy, state.clock, self._cost, self._advice)
        fresh.stats = state.stats
        fresh.drafts = state.drafts
        fresh.step_clock = state.step_clock
        fresh.stall = state.stall
        fresh.kv.num_query_tokens = state.kv.num_query_tokens
        fresh.kv.num_hit_tokens = state.kv.num_hit_tokens
        fresh.kv.num_external_tokens = state.kv.num_external_tokens
        fresh.seats.put_back_removed(range(self.config.max_num_seqs))
        ended = state.take_told()
        for sequence in sorted(state.roster, key=lambda live: live.order):
            if sequence is guilty:
                sentence = f"The engine met a defect while it handled this request ({type(error).__name__}: {error})."
                request = sequence.request
                output = EngineOutput(*request.key, sequence.num_output_tokens, [], handle=request.handle)
                output.finish_reason = "error"
                output.stop_reason = sentence
                output.record = sequence.record
                ended.append(output)
            else:
                fresh.adopt(sequence)
        self.in_flight.clear()
        self._state = fresh
        self._admission = Admission(fresh)
        return StepOutputs(ended)

    def stats(self) -> SchedulerStats:
        """The state now, as a copy."""
        state = self._state
        stats = copy(state.stats)
        stats.num_running = len(state.running)
        stats.num_waiting = state.num_waiting
        stats.num_deferred = len(state.awaiting)
        stats.kv_cache_usage = state.kv.usage
        stats.prefix_queries = state.kv.num_query_tokens
        stats.prefix_hits = state.kv.num_hit_tokens
        stats.tier_hits = state.kv.num_external_tokens
        state.drafts.report(stats)
        return stats

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False, and no change, while any sequence runs."""
        return self._state.kv.reset()

    def check_integrity(self) -> None:
        """Raise `IntegrityError`, naming the violated invariant, unless queues, sequences and blocks agree."""
        check_sequences(self._state, num_in_flight=len(self.in_flight))
        self._state.kv.check_integrity(self._state.running.sequences)

    def _plan(self, planner: StepPlanner) -> None:
        """A step without suspects. Who preempts does not admit: that would only exchange the one for the other."""
        state = self._state
        num_preemptions = state.stats.num_preemptions
        planner.plan_decodes(in_flight=bool(self.in_flight))
        planner.plan_chunks()
        if state.stats.num_preemptions == num_preemptions and not state.seats.suspects:
            self._admission.admit(planner)
        if state.recorder:
            limit = self._admission.held_by(planner)
            state.recorder.wait(limit)

    def _begin(self, step: Step) -> None:
        """Count a step as under way, with all that must be undone should it fail."""
        kv = self._state.kv
        if self._state.step_clock is not None:
            self._state.step_clock.begin(step)
        step.unwritten = kv.take_unwritten()
        if step.plan.total_num_tokens:
            step.plan.transfers = kv.take_transfers()
            step.plan.copies = kv.states.take()
        self.in_flight.append(step)

    def _take_oldest(self, step: Step) -> None:
        """The oldest step is in flight no longer. Raises IntegrityError for any other one."""
        if not self.in_flight or self.in_flight[0].number != step.number:
            raise IntegrityError("step_in_flight", f"step {step.number} is not the oldest one without a result")
        self.in_flight.popleft()

    def _undo(self, step: Step) -> None:
        """A step counts as never computed: nobody shares the blocks that it should have written.

        The worker is to hear of its removals again.
        """
        state = self._state
        state.kv.forget(step.unwritten)
        # Offered since the newest plan was made; it may be this step that should have written them.
        offered_since = state.kv.take_unwritten()
        state.kv.forget(offered_since)
        self._settle_transfers(step, None)
        state.seats.put_back_removed(step.plan.removed)

    def _settle_transfers(self, step: Step, pages: list[Page] | None) -> None:
        """pages: what the copies of a step brought; None when they were not made, or may not have been."""
        if step.plan.transfers is not None:
            self._state.kv.settle_transfers(step.plan.transfers, pages)
