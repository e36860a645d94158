"""The scheduler: which sequences compute how many tokens in each step, and how their results are read.

Owns: the order of the parts of a step, and what happens when a step or an invariant breaks. Never does: compute, sample,
decode text, or know blocks beyond asking the KV manager. Called by: the engine loop.

There is one rule: `num_computed_tokens` of a sequence catches up with its known tokens (prompt, output and drafts)
under the step's token budget. Prefill, chunks, decode, prefix hits, recomputation and the verification of drafts are
all that rule.

The running list is kept in the policy's order, so its last member is the one to preempt. A sequence is admitted when
blocks for all its known tokens are free, and takes them at once, so that only decoding needs further blocks.

Further steps may be planned before the results of earlier ones are known. Such a plan assumes that each sequence that
samples gets one token, or up to one more for each of its drafts. A sequence that turns out to have ended has computed
tokens too many; they are dropped.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy

from core.api.config import SchedulerConfig
from core.api.errors import RequestError
from core.api.kv_transfer import Page
from core.api.messages import EngineOutput, EngineRequest, FinishReason
from core.api.policy import SchedulingPolicy
from core.api.stats import SchedulerStats
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
    """The scheduler of one engine: plans steps, and reads their results in the order of the plans.

    in_flight: steps without a result, oldest first.

    make_kv:       an empty KV manager for the executor's pool.
    clock:         returns seconds; deadlines are given on the same clock.
    max_in_flight: maximum number of steps without a result. At most 2 where states are cached, and 1 where they are rolled back
                   after drafts.
    apart:         more than 0: steps in flight share no sequence whose next token is unknown, and sequences are divided among
                   them, but not into fewer than this number.
    lockstep:      whether a step that computes nothing is sent to the executor like any other, and so awaits a result.
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
        apart: int = 0,
        vectorized: bool = True,
        cost: StepCost | None = None,
        advise: AdviceFactory | None = None,
    ) -> None:
        self.config = config
        self.max_in_flight = max_in_flight
        self.lockstep = lockstep
        self.apart = apart
        self.in_flight: deque[Step] = deque()
        self._make_kv = make_kv
        self._vectorized = vectorized
        cost = StepCost() if cost is None else cost
        make_advice = advise if config.adaptive_drafts else None
        advice: StepAdvice | None = None
        if config.num_speculative_tokens:
            advice = FixedAdvice(config) if make_advice is None else make_advice(config, cost)
        self._state = SchedulerState(config, make_kv(), policy, clock, cost, advice)
        if self._state.kv.states.can_roll_back:
            self.max_in_flight = 1
        elif self._state.kv.snapshots is not None:
            # Further ahead a step would begin at block edges whose tokens, and so whose keys, are not known yet.
            self.max_in_flight = min(max_in_flight, 2)
        self._admission = Admission(self._state)
        self._num_steps = 0
        self._token_budget = config.max_num_batched_tokens
        if not config.enable_chunked_prefill:
            # Without chunks a prompt has to fit into one step: a smaller budget would keep the longest prompts out forever.
            self._token_budget = max(self._token_budget, config.max_model_len)
        num_mixed = config.max_num_mixed_batched_tokens if config.enable_chunked_prefill else 0
        self._mixed_budget = num_mixed or self._token_budget

    @property
    def kv(self) -> KVManager:
        """The current KV manager; `recover` and `start_over` replace it."""
        return self._state.kv

    @property
    def current(self) -> EngineRequest | None:
        """The request that is being handled; `recover` ends it when an operation raises."""
        sequence = self._state.current
        return None if sequence is None else sequence.request

    @property
    def waits_for_kv(self) -> bool:
        """Whether a sequence waits for keys and values that are being loaded, so that an empty plan is no fault."""
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
        problem = problem or state.limits.why_not_resumed(request)
        if request.flex and not getattr(state.policy, "has_flex", False):
            problem = "service_tier 'flex' needs core-engine-policies; install it, or leave out the field."
        if problem:
            state.report(_failed(request, 0, problem))
        else:
            state.enter(request)

    def compute_next(self, request: EngineRequest) -> None:
        """Have a sequence computed before all others and alone, as soon as blocks for it are free.

        Does nothing while a sequence with the same key is live.
        """
        if self._state.roster.find(request.key) is None:
            self._state.enter(request, alone=True)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Drop all choices of these requests and free their blocks, without an output. Unknown ids are ignored."""
        for request_id in request_ids:
            keys = self._state.roster.keys_of(request_id)
            self.abort_choices(keys)

    def abort_choices(self, keys: Iterable[SequenceKey]) -> None:
        """Drop single sequences and free their blocks, without an output. Unknown keys are ignored."""
        for key in keys:
            sequence = self._state.roster.find(key)
            if sequence is not None:
                self._state.release(sequence)

    def has_unfinished(self) -> bool:
        """Whether any sequence waits or runs, or an end must still be reported to the worker or a client."""
        return bool(self.in_flight) or self.wants_step()

    @property
    def num_live(self) -> int:
        """Number of sequences that have not ended."""
        return len(self._state.roster)

    @property
    def sequences(self) -> Iterator[SequenceState]:
        """The sequences that have not ended."""
        return iter(self._state.roster)

    def wants_step(self) -> bool:
        """Whether there is a reason to plan another step; otherwise only those in flight are to be finished."""
        return self._state.has_unfinished

    def schedule(self) -> Step:
        """Plan the next step: first decodes, then prompts that have begun, then waiting sequences.

        The plan may be empty. In `removed` and `new` the same slot means: drop the old sequence, then add the new one.
        A step is in flight until it is finished or fails. An idle step is in flight only in lockstep; otherwise there is no
        result to wait for, and it may be finished at once.
        """
        if len(self.in_flight) >= self.max_in_flight:
            raise IntegrityError("steps_in_flight", f"{len(self.in_flight)} steps wait for their results")
        state = self._state
        self._num_steps += 1
        state.step_number = self._num_steps
        # Before anything is planned, so that a sequence past its deadline takes no tokens of this step.
        state.expire()
        state.drafts.begin_step(state.running)
        mixed_budget = self._admission.mixed_budget(self._mixed_budget)
        planner = StepPlanner(state, self._token_budget, mixed_budget, vectorized=self._vectorized)
        if self.apart:
            planner.keep_apart(self.max_in_flight, self.apart)
        if not state.seats.suspects or not self._admission.try_suspect(planner):
            self._plan(planner)
        state.current = None
        step = planner.finish()
        step.number = self._num_steps
        if self.lockstep or not step.is_idle:
            self._begin(step)
        return step

    def finish(self, step: Step, result: StepResult) -> StepOutputs:
        """Apply the results of the oldest step; sequences that have left since it was planned are skipped.

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
        # The reader reports each verified draft to `drafts`, so that `finish_step` below has to come after it. Everything above
        # reads slots as the step had them, so it has to come before: the reader frees the slots of sequences that end.
        outputs = ResultReader(state, step, result, vectorized=self._vectorized).run()
        state.drafts.finish_step(step, result, seconds)
        state.current = None
        return outputs

    def fail(self, step: Step, sentence: str) -> StepOutputs:
        """Handle that the oldest step could not be computed.

        It counts as never begun, and so do all later steps in flight, whatever their outcome: only the work is lost.

        A sequence that was alone in it ends with `sentence`. Several sequences become suspects: each is computed again, alone,
        until it gets a token, so that only the one at fault ends. Raises IntegrityError for any other step.
        """
        state = self._state
        self._take_oldest(step)
        self._undo(step)
        state.stats.num_failed_steps += 1
        computed = step.sequences()
        suspects = [sequence for sequence in computed if sequence.status is SequenceStatus.RUNNING]
        # Later steps in flight were planned on tokens of this one, so they are void too.
        self.give_up(but=suspects)
        if len(computed) == 1:
            for sequence in suspects:
                output = state.end(sequence, "error", sentence, keep_cached=False)
                state.report(output)
        else:
            for sequence in suspects:
                state.suspend(sequence)
                # It may be a suspect of an earlier failure already, and must not be listed twice.
                state.seats.clear(sequence)
            state.seats.suspect(suspects)
        return StepOutputs(state.take_reports())

    def give_up(self, but: Sequence[SequenceState] = ()) -> None:
        """Cancel all steps in flight, which will never have a result, and queue their sequences again, except for `but`."""
        state = self._state
        while self.in_flight:
            step = self.in_flight.popleft()
            self._undo(step)
            for sequence in step.sequences():
                if sequence.status is SequenceStatus.RUNNING and sequence not in but:
                    state.suspend(sequence)
                    # A suspect is in no queue: it waits in the list of suspects.
                    if sequence not in state.seats.suspects:
                        state.roster.queue_again(sequence)

    def recover(self, error: Exception) -> StepOutputs:
        """Recover after an operation of this class raised `error`: end the sequence in `current` and start all others over.

        The cache starts empty and every sequence waits again. Tokens already returned are kept, so clients only see a delay.
        The next plan has the worker drop every slot.
        """
        self._state.stats.num_violations += 1
        return self._rebuild(self._state.current, error)

    def start_over(self) -> StepOutputs:
        """Queue every sequence again, with its tokens and an empty cache, after the executor has lost its state."""
        return self._rebuild(None, None)

    def end_all(self, adapter: str | None = None, sentence: str | None = None) -> list[EngineOutput]:
        """End every sequence, or only those of an adapter, with finish reason `abort`, or `error` with a sentence."""
        state = self._state
        reason: FinishReason = "abort" if sentence is None else "error"
        for sequence in list(state.roster):
            if adapter in (None, sequence.request.adapter):
                state.report(state.end(sequence, reason, sentence, keep_cached=True))
        return state.take_reports()

    @property
    def live_stats(self) -> SchedulerStats:
        """The statistics object that `stats` copies. Other owners write their fields of it here."""
        return self._state.stats

    def _rebuild(self, guilty: SequenceState | None, error: Exception | None) -> StepOutputs:
        """Move all sequences to a new state with an empty cache; `guilty`, which caused `error`, ends instead."""
        state = self._state
        fresh = state.renewed(self._make_kv())
        ended = state.take_reports()
        # In the policy's order, because the queue of a policy may keep the order of arrival without sorting.
        for sequence in sorted(state.roster, key=lambda live: live.order):
            if sequence is guilty:
                sentence = f"The engine met a defect while it handled this request ({type(error).__name__}: {error})."
                ended.append(_failed(sequence.request, sequence.num_output_tokens, sentence))
                ended[-1].record = sequence.record
            else:
                fresh.adopt(sequence)
        self.in_flight.clear()
        self._state = fresh
        self._admission = Admission(fresh)
        return StepOutputs(ended)

    def stats(self) -> SchedulerStats:
        """Return a copy of the counters with the present number of sequences and cache usage."""
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
        """Plan a step without suspects."""
        state = self._state
        self._admission.make_way(planner)
        num_preemptions = state.stats.num_preemptions
        planner.plan_decodes(in_flight=bool(self.in_flight))
        for flex in (False,) if state.flex_cost is None else (False, True):
            planner.plan_chunks(flex=flex)
            # A step that preempts admits nothing: that would only exchange one sequence for another. While a suspect lacks
            # blocks nothing is admitted either, so that running sequences end and free them.
            if state.stats.num_preemptions == num_preemptions and not state.seats.suspects:
                self._admission.admit(planner, flex=flex)
            if state.recorder:
                state.recorder.wait(self._admission.limiting_argument(planner, flex=flex), flex=flex)

    def _begin(self, step: Step) -> None:
        """Record a step as in flight, with everything that must be undone if it fails."""
        kv = self._state.kv
        if self._state.step_clock is not None:
            self._state.step_clock.begin(step)
        step.unwritten = kv.take_unwritten()
        # Without tokens the worker computes nothing and makes no copies; they wait for a plan that has some.
        if step.plan.total_num_tokens:
            step.plan.transfers = kv.take_transfers()
            step.plan.copies = kv.take_copies()
        self.in_flight.append(step)

    def _take_oldest(self, step: Step) -> None:
        """Remove the oldest step from those in flight. Raises IntegrityError for any other step."""
        if not self.in_flight or self.in_flight[0].number != step.number:
            raise IntegrityError("step_in_flight", f"step {step.number} is not the oldest one without a result")
        self.in_flight.popleft()

    def _undo(self, step: Step) -> None:
        """Undo a step that counts as never computed: the blocks that it should have written are no longer shared.

        Its removals go to the worker again with the next plan.
        """
        state = self._state
        state.kv.forget(step.unwritten)
        # Offered since the newest plan was made; it may be this step that should have written them.
        offered_since = state.kv.take_unwritten()
        state.kv.forget(offered_since)
        self._settle_transfers(step, None)
        state.seats.put_back_removed(step.plan.removed)

    def _settle_transfers(self, step: Step, pages: list[Page] | None) -> None:
        """Hand over the pages that a step's copies returned; None when the copies may not have been made."""
        if step.plan.transfers is not None:
            self._state.kv.settle_transfers(step.plan.transfers, pages)


def _failed(request: EngineRequest, start: int, sentence: str) -> EngineOutput:
    """Return the last output of a sequence that holds nothing."""
    return EngineOutput(*request.key, start, [], None, None, "error", sentence, handle=request.handle)
