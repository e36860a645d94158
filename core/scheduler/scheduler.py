"""One step of the engine: who computes how many tokens, and what came of it.

Owns: the order of the parts of a step, and what happens when a step or an invariant breaks. Never does: compute, sample,
decode text, or know blocks beyond asking the KV manager. Called by: the engine loop.

There is one rule: `num_computed_tokens` of a sequence catches up with its known tokens (prompt, output and drafts)
under the step's token budget. Prefill, chunks, decode, prefix hits, recomputation and the verification of drafts are
all that rule.

The running list is kept in the policy's order, so its last member is the one to preempt. A sequence is admitted when
blocks for all its known tokens are free, and takes them at once: only decoding makes anybody need more.

One more step may be planned before the last one's result is there: each sequence that samples is taken to get one token,
and what turns out to have ended computes a token too many, which is dropped.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from copy import copy

from core.api.config import SchedulerConfig
from core.api.errors import RequestError
from core.api.messages import EngineOutput, EngineRequest, SchedulerStats
from core.api.policy import SchedulingPolicy
from core.api.step_plan import SequenceKey, StepPlan, StepResult
from core.kv.integrity import IntegrityError
from core.kv.manager import KVManager
from core.scheduler.admission import Admission
from core.scheduler.integrity import check_sequences
from core.scheduler.planning import Flight, StepPlanner
from core.scheduler.results import ResultReader, StepOutputs
from core.scheduler.sequence import SequenceState, SequenceStatus
from core.scheduler.state import SchedulerState

MAX_IN_FLIGHT = 2


class Scheduler:
    """Plans steps and reads their results in the same order; `MAX_IN_FLIGHT` plans may be without a result.

    make_kv: an empty KV manager for the executor's pool. clock: seconds, of the clock that deadlines are told in.
    vectorized: False handles every sequence on its own; the plans are the same.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        make_kv: Callable[[], KVManager],
        policy: SchedulingPolicy,
        *,
        clock: Callable[[], float] = time.monotonic,
        vectorized: bool = True,
    ) -> None:
        self.config = config
        self._make_kv = make_kv
        self._vectorized = vectorized
        self._state = SchedulerState(config, make_kv(), policy, clock)
        self._admission = Admission(self._state)
        self._flights: deque[Flight] = deque()
        self._token_budget = self._mixed_budget = config.max_num_batched_tokens
        if not config.enable_chunked_prefill:
            self._token_budget = self._mixed_budget = max(self._token_budget, config.max_model_len)
        elif config.max_num_mixed_batched_tokens:
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

    def add(self, request: EngineRequest) -> None:
        """Queue a sequence. One that can never run ends with an error output of the next `update`.

        Raises RequestError when a live sequence has the same request id and choice.
        """
        if request.choice in self._state.choices.get(request.request_id, ()):
            raise RequestError(
                f"The request id '{request.request_id}' (choice {request.choice}) is in use; choose another one.",
                param="request_id",
            )
        limits = self._state.limits
        problem = limits.why_never(len(request.prompt_token_ids)) or limits.why_not_resumed(request)
        if problem:
            self._state.ended.append(
                EngineOutput(*request.key, 0, [], finish_reason="error", stop_reason=problem, handle=request.handle)
            )
        else:
            self._state.enter(request)

    def compute_next(self, request: EngineRequest) -> None:
        """Have a sequence computed before all others, alone, once it finds a block. Nothing happens while its key is live."""
        if request.choice not in self._state.choices.get(request.request_id, ()):
            self._state.enter(request, alone=True)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Forget all choices of these requests; unknown ids are ignored. Nothing is reported, blocks come back."""
        choices = self._state.choices
        self.abort_choices([(name, choice) for name in request_ids for choice in choices.get(name, ())])

    def abort_choices(self, keys: Iterable[SequenceKey]) -> None:
        """Forget single sequences; unknown keys are ignored. Nothing is reported, blocks come back."""
        for request_id, choice in keys:
            sequence = self._state.choices.get(request_id, {}).get(choice)
            if sequence is not None:
                self._state.release(sequence)

    def has_unfinished(self) -> bool:
        """Whether anything waits or runs, or the worker or the client must still hear of an end."""
        state = self._state
        return bool(state.choices or state.removed or state.ended or self._flights)

    def schedule(self) -> StepPlan:
        """Plan the next step: those that decode, then prompts that have begun, then those that wait.

        The plan may be empty. In `removed` and `new` the same slot means: drop the old sequence, then add the new one.
        """
        if len(self._flights) >= MAX_IN_FLIGHT:
            raise IntegrityError("plans_in_flight", f"{len(self._flights)} plans wait for their results")
        state = self._state
        state.expire()
        planner = StepPlanner(state, self._token_budget, self._mixed_budget, vectorized=self._vectorized)
        if not state.suspects or not self._admission.try_suspect(planner):
            self._plan(planner)
        state.at_work = None
        flight = planner.finish()
        self._flights.append(flight)
        return flight.plan

    def update(self, plan: StepPlan, result: StepResult) -> StepOutputs:
        """Take the results of the oldest plan in; sequences that left since then are skipped.

        Returns an output for each sequence with new tokens or an end. Raises IntegrityError for any other plan.
        """
        if not self._flights or self._flights[0].plan is not plan:
            raise IntegrityError("plan_in_flight", "update got a plan that is not the oldest one without a result")
        outputs = ResultReader(self._state, self._flights.popleft(), result, vectorized=self._vectorized).run()
        self._state.at_work = None
        return outputs

    def fail_step(self, sentence: str) -> StepOutputs:
        """The oldest plan could not be computed, and none behind it was begun: nothing is lost but the work.

        A sequence that was alone in it ends with `sentence`. Several are suspects: each is computed again, alone, until
        it has got a token, so that only the guilty one ends.
        """
        state = self._state
        state.stats.num_failed_steps += 1
        flight = self._flights.popleft()
        state.kv.forget(flight.unwritten)
        computed = flight.sequences()
        suspects = [sequence for sequence in computed if sequence.status is SequenceStatus.RUNNING]
        self.cancel_steps(but=suspects)
        if len(computed) == 1:
            state.ended += [state.end(sequence, "error", sentence, keep_cached=False) for sequence in suspects]
        else:
            for sequence in suspects:
                state.suspend(sequence)
                state.clear(sequence)
            state.suspects.extendleft(reversed(suspects))
        records, state.ended = state.ended, []
        return StepOutputs(records)

    def cancel_steps(self, but: Sequence[SequenceState] = ()) -> None:
        """Plans without a result will never have one: their sequences wait again, except for `but`."""
        state = self._state
        while self._flights:
            flight = self._flights.popleft()
            state.kv.forget(flight.unwritten)
            for sequence in flight.sequences():
                if sequence.status is SequenceStatus.RUNNING and sequence not in but:
                    state.suspend(sequence)
                    if sequence not in state.suspects:
                        state.queue_again(sequence)

    def mend(self, error: Exception) -> StepOutputs:
        """An operation of this class raised `error`: end the sequence that it was about, and start all others over.

        The cache starts empty and every sequence waits again; tokens already given are kept, so clients only
        see a delay. The worker is told to forget every slot.
        """
        state = self._state
        guilty = state.at_work
        state.stats.num_violations += 1
        fresh = SchedulerState(self.config, self._make_kv(), state.policy, state.clock)
        fresh.stats, fresh.drafts, fresh.ended = state.stats, state.drafts, state.ended
        fresh.removed = list(range(self.config.max_num_seqs))
        for sequence in sorted(state.live(), key=lambda live: live.order):
            if sequence is guilty:
                sentence = f"The engine met a defect while it handled this request ({type(error).__name__}: {error})."
                request = sequence.request
                output = EngineOutput(*request.key, sequence.num_output_tokens, [], handle=request.handle)
                output.finish_reason, output.stop_reason = "error", sentence
                fresh.ended.append(output)
            else:
                fresh.adopt(sequence)
        self._flights.clear()
        self._state = fresh
        self._admission = Admission(fresh)
        records, fresh.ended = fresh.ended, []
        return StepOutputs(records)

    def stats(self) -> SchedulerStats:
        """The state now, as a copy."""
        state = self._state
        stats = copy(state.stats)
        stats.num_running = len(state.running)
        stats.num_waiting = state.num_waiting
        stats.kv_cache_usage = state.kv.usage
        stats.prefix_queries = state.kv.num_query_tokens
        stats.prefix_hits = state.kv.num_hit_tokens
        stats.tier_hits = state.kv.num_tier_tokens
        return stats

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False, and no change, while any sequence runs."""
        return self._state.kv.reset()

    def check_integrity(self) -> None:
        """Raise `IntegrityError`, naming the violated invariant, unless queues, sequences and blocks agree."""
        check_sequences(self._state, num_flights=len(self._flights))
        self._state.kv.check_integrity(self._state.running.sequences)

    def _plan(self, planner: StepPlanner) -> None:
        """A step without suspects. Who preempts does not admit: that would only exchange the one for the other."""
        state = self._state
        num_preemptions = state.stats.num_preemptions
        planner.plan_decodes(in_flight=bool(self._flights))
        planner.plan_chunks()
        if state.stats.num_preemptions == num_preemptions and not state.suspects:
            self._admission.admit(planner)
