"""One step of the engine: who computes how many tokens, and what came of it.

Owns: the waiting queue, the running list, the token budget, preemption, and the outputs of a step. Never does: compute,
sample, decode text, or know blocks beyond asking the KV manager. Called by: the engine loop.

There is one rule: `num_computed_tokens` of a sequence catches up with its known tokens (prompt, output and drafts)
under the step's token budget. Prefill, chunks, decode, prefix hits, recomputation and the verification of drafts are
all that rule.

The running list is kept in the policy's order, so its last member is the one to preempt. A sequence is admitted when
blocks for all its known tokens are free, and takes them at once: only decoding makes anybody need more.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from copy import copy
from operator import attrgetter

from core.api.config import CacheConfig, SchedulerConfig
from core.api.errors import RequestError
from core.api.messages import EngineOutput, EngineRequest, FinishReason, SchedulerStats
from core.api.step_plan import NewSequence, SequenceKey, StepPlan, StepResult
from core.kv.integrity import IntegrityError
from core.kv.manager import KVManager
from core.scheduler.drafts import DraftRules
from core.scheduler.integrity import check_sequences
from core.scheduler.limits import LengthLimits
from core.scheduler.queue import make_queue
from core.scheduler.sequence import SequenceState, SequenceStatus
from core.scheduler.stopping import append_tokens, stop_reason

_order = attrgetter("order")


class Scheduler:
    """Plans steps and reads their results: `schedule` and `update` alternate, for empty plans too."""

    def __init__(self, config: SchedulerConfig, cache: CacheConfig, num_blocks: int) -> None:
        self.config = config
        self.kv = KVManager(num_blocks, cache.block_size, cache.enable_prefix_caching, cache.hash_algorithm)
        self._limits = LengthLimits(config.max_model_len, self.kv.pool.capacity, self.kv.block_size)
        self._token_budget = config.max_num_batched_tokens
        if not config.enable_chunked_prefill:
            self._token_budget = max(self._token_budget, config.max_model_len)
        self._waiting = make_queue(config.policy)
        self._running: list[SequenceState] = []
        self._choices: dict[str, dict[int, SequenceState]] = {}
        self._removed: list[SequenceKey] = []
        self._refused: list[EngineOutput] = []
        self._plan_in_flight: StepPlan | None = None
        self._scheduled: list[SequenceState] = []
        self._num_arrivals = 0
        self._stats = SchedulerStats()
        self._speculates = config.num_speculative_tokens > 0
        self._drafts = DraftRules(config.num_speculative_tokens, self._stats)

    def add(self, request: EngineRequest) -> None:
        """Queue a sequence. One that can never run ends with an error output of the next `update`.

        Raises RequestError when a live sequence has the same request id and choice.
        """
        if request.choice in self._choices.get(request.request_id, ()):
            raise RequestError(
                f"The request id '{request.request_id}' (choice {request.choice}) is in use; choose another one.",
                param="request_id",
            )
        problem = self._limits.why_never(len(request.prompt_token_ids))
        if problem:
            self._refused.append(
                EngineOutput(request.request_id, request.choice, 0, [], finish_reason="error", stop_reason=problem)
            )
            return
        priority = request.priority if self.config.policy == "priority" else 0
        sequence = SequenceState(request, (priority, self._num_arrivals), self._limits.max_length)
        self._num_arrivals += 1
        self._choices.setdefault(request.request_id, {})[request.choice] = sequence
        self._waiting.push(sequence)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Forget all choices of these requests; unknown ids are ignored. Nothing is reported, blocks come back."""
        self.abort_choices(
            [(request_id, choice) for request_id in request_ids for choice in self._choices.get(request_id, ())]
        )

    def abort_choices(self, keys: Iterable[SequenceKey]) -> None:
        """Forget single sequences; unknown keys are ignored. Nothing is reported, blocks come back."""
        any_running = False
        for request_id, choice in keys:
            sequence = self._choices.get(request_id, {}).get(choice)
            if sequence is None:
                continue
            if sequence.status is SequenceStatus.WAITING:
                self._waiting.remove(sequence)
            else:
                any_running = True
            self._release(sequence)
        if any_running:
            self._drop_finished()

    def has_unfinished(self) -> bool:
        """Whether anything waits or runs, or the worker or the client must still hear of an end."""
        return bool(self._choices or self._removed or self._refused)

    def schedule(self) -> StepPlan:
        """Plan the next step: running sequences first, then waiting ones while budget, seats and blocks last.

        The plan may be empty. In `removed` and `new` the same key means: drop the old sequence, then add the new one.
        """
        plan = StepPlan()
        self._plan_in_flight, self._scheduled = plan, []
        num_preemptions = self._stats.num_preemptions
        budget = self._schedule_running(plan, self._token_budget)
        if self._stats.num_preemptions == num_preemptions:
            budget = self._admit_waiting(plan, budget)
        plan.total_num_tokens = self._token_budget - budget
        plan.removed, self._removed = self._removed, []
        return plan

    def update(self, plan: StepPlan, result: StepResult) -> list[EngineOutput]:
        """Take the results of the latest plan in; sequences aborted since then are skipped.

        Returns one output for each sequence with new tokens or an end. Raises IntegrityError for any other plan.
        """
        if plan is not self._plan_in_flight:
            raise IntegrityError("plan_in_flight", "update got a plan that is not the latest one of schedule")
        self._plan_in_flight = None
        outputs, self._refused = self._refused, []
        any_finished = False
        for sequence in self._scheduled:
            if sequence.status is not SequenceStatus.RUNNING:
                continue
            output = self._update_sequence(sequence, plan, result)
            if output is not None:
                outputs.append(output)
                any_finished = any_finished or output.finish_reason is not None
        self._scheduled = []
        if any_finished:
            self._drop_finished()
        return outputs

    def stats(self) -> SchedulerStats:
        """The state now, as a copy."""
        stats = copy(self._stats)
        stats.num_running = len(self._running)
        stats.num_waiting = len(self._waiting)
        stats.kv_cache_usage = self.kv.usage
        stats.prefix_queries = self.kv.num_query_tokens
        stats.prefix_hits = self.kv.num_hit_tokens
        return stats

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False, and no change, while any sequence runs."""
        return self.kv.reset()

    def _schedule_running(self, plan: StepPlan, budget: int) -> int:
        """Give running sequences their tokens, preempting from the end; returns the budget that is left."""
        running = self._running
        index = 0
        while index < len(running) and budget > 0:
            sequence = running[index]
            index += 1
            num_tokens = len(sequence.token_ids) - sequence.num_computed_tokens + len(sequence.drafts)
            if num_tokens > 1:
                num_tokens = self._limit(num_tokens, budget)
            draft_budget = self._drafts.plan(sequence, plan, num_tokens) if self._speculates else 0
            if sequence.num_computed_tokens + num_tokens + draft_budget > sequence.num_slots:
                block_ids = self._grow(sequence, plan, num_tokens, draft_budget)
                if block_ids is None:
                    break
                plan.new_block_ids[sequence.key] = [block_ids]
            plan.num_scheduled[sequence.key] = num_tokens
            self._scheduled.append(sequence)
            budget -= num_tokens
        return budget

    def _admit_waiting(self, plan: StepPlan, budget: int) -> int:
        """Admit waiting sequences in order until one does not fit; returns the budget that is left."""
        waiting, running, kv = self._waiting, self._running, self.kv
        while budget > 0 and len(running) < self.config.max_num_seqs and len(waiting):
            sequence = waiting.peek()
            if sequence.blocks_missing > kv.pool.num_free:
                break
            hits = kv.lookup(sequence) if sequence.prompt_logprobs is None else []
            num_known = len(sequence.token_ids)
            num_tokens = num_known - len(hits) * kv.block_size
            if num_tokens > budget and not self.config.enable_chunked_prefill:
                break
            num_missing = kv.blocks_missing(hits, num_known)
            if num_missing > kv.pool.num_free:
                sequence.blocks_missing = num_missing
                break
            waiting.pop()
            self._start(sequence, hits)
            num_tokens = self._limit(num_tokens, budget)
            draft_budget = self._drafts.plan(sequence, plan, num_tokens) if self._speculates else 0
            if kv.allocate_slots(sequence, num_tokens, draft_budget) is None:
                self._drafts.withdraw(sequence, plan)
            plan.new.append(
                NewSequence(
                    sequence.request,
                    sequence.output_token_ids,
                    sequence.num_computed_tokens,
                    [sequence.block_ids.copy()],
                )
            )
            plan.num_scheduled[sequence.key] = num_tokens
            self._scheduled.append(sequence)
            budget -= num_tokens
        return budget

    def _start(self, sequence: SequenceState, hits: list[int]) -> None:
        """Make an admitted sequence run, with blocks for all its known tokens (they were checked to be free)."""
        self.kv.attach(sequence, hits)
        self.kv.allocate_slots(sequence, len(sequence.token_ids) - sequence.num_computed_tokens)
        if sequence.num_cached_tokens < 0:
            sequence.num_cached_tokens = sequence.num_computed_tokens
        sequence.status = SequenceStatus.RUNNING
        sequence.in_batch = True
        sequence.blocks_missing = 0
        insort(self._running, sequence, key=_order)

    def _limit(self, num_tokens: int, budget: int) -> int:
        threshold = self.config.long_prefill_token_threshold
        if threshold > 0 and self.config.enable_chunked_prefill:
            num_tokens = min(num_tokens, threshold)
        return min(num_tokens, budget)

    def _grow(self, sequence: SequenceState, plan: StepPlan, num_tokens: int, num_lookahead: int) -> list[int] | None:
        """Find blocks for a running sequence, preempting the last ones; None when it had to go itself.

        A sequence alone always finds them: none grows beyond what the whole cache holds.
        """
        while True:
            block_ids = self.kv.allocate_slots(sequence, num_tokens, num_lookahead)
            if block_ids is not None:
                return block_ids
            if num_lookahead:
                num_lookahead = 0
                self._drafts.withdraw(sequence, plan)
                continue
            victim = self._running.pop()
            self._preempt(victim)
            if victim is sequence:
                plan.drafts.pop(sequence.key, None)
                self._drafts.withdraw(sequence, plan)
                return None

    def _preempt(self, sequence: SequenceState) -> None:
        """Send a running sequence back to the queue; its tokens are kept and computed again."""
        self.kv.free(sequence)
        self._tell_removed(sequence)
        sequence.status = SequenceStatus.WAITING
        sequence.drafts = []
        if sequence.prompt_logprobs is not None:
            sequence.prompt_logprobs = []
        self._waiting.restore(sequence)
        self._stats.num_preemptions += 1

    def _update_sequence(self, sequence: SequenceState, plan: StepPlan, result: StepResult) -> EngineOutput | None:
        key = sequence.key
        if result.errors and key in result.errors:
            return self._fail(sequence, result.errors[key])
        if sequence.prompt_logprobs is not None:
            sequence.prompt_logprobs += result.prompt_logprobs.get(key, ())
        token_ids = result.token_ids.get(key)
        if not token_ids:
            sequence.num_computed_tokens += plan.num_scheduled[key]
            if sequence.num_computed_tokens >= len(sequence.token_ids):
                return self._fail(sequence, "The worker returned no token for this sequence; see the engine's log.")
            return None
        if (len(token_ids) > 1 or plan.drafts) and not self._drafts.accept(sequence, plan, len(token_ids)):
            return self._fail(sequence, "The worker returned more tokens than were proposed; see the engine's log.")
        start = len(sequence.token_ids) - sequence.num_prompt_tokens
        finish_reason = append_tokens(sequence, token_ids)
        # All but the newest token are computed: the keys and values of rejected drafts are forgotten by that.
        sequence.num_computed_tokens = len(sequence.token_ids) - 1
        prompt_logprobs, sequence.prompt_logprobs = sequence.prompt_logprobs, None
        output = EngineOutput(
            key[0],
            key[1],
            start,
            token_ids,
            result.logprobs.get(key) if result.logprobs else None,
            prompt_logprobs,
            finish_reason,
            None,
            sequence.num_cached_tokens,
        )
        if finish_reason is not None:
            self._finish(sequence, output, finish_reason)
        elif self._speculates:
            self._drafts.keep(sequence, plan, result.drafts.get(key))
        return output

    def _finish(self, sequence: SequenceState, output: EngineOutput, reason: FinishReason) -> None:
        """Cut what was sampled behind the end, say why it ended, and release the sequence."""
        num_kept = sequence.num_output_tokens - output.start
        output.token_ids = output.token_ids[:num_kept]
        if output.logprobs is not None:
            output.logprobs = output.logprobs[:num_kept]
        if reason == "stop":
            output.stop_reason = stop_reason(sequence)
        else:
            output.stop_reason = self._limits.why_full(len(sequence.token_ids))
        self._release(sequence)

    def _fail(self, sequence: SequenceState, sentence: str) -> EngineOutput:
        """End a sequence whose step went wrong; what the step wrote is not trusted."""
        self._release(sequence, keep_cached=False)
        return EngineOutput(
            sequence.request.request_id,
            sequence.request.choice,
            sequence.num_output_tokens,
            [],
            finish_reason="error",
            stop_reason=sentence,
            num_cached_tokens=max(sequence.num_cached_tokens, 0),
        )

    def _release(self, sequence: SequenceState, *, keep_cached: bool = True) -> None:
        """Forget a sequence. One that runs stays in the running list until `_drop_finished`."""
        sequence.status = SequenceStatus.FINISHED
        self.kv.free(sequence, keep_cached=keep_cached)
        self._tell_removed(sequence)
        request_id, choice = sequence.key
        choices = self._choices[request_id]
        del choices[choice]
        if not choices:
            del self._choices[request_id]

    def _tell_removed(self, sequence: SequenceState) -> None:
        if sequence.in_batch:
            sequence.in_batch = False
            self._removed.append(sequence.key)

    def _drop_finished(self) -> None:
        self._running = [sequence for sequence in self._running if sequence.status is SequenceStatus.RUNNING]

    def check_integrity(self) -> None:
        """Raise `IntegrityError`, naming the violated invariant, unless queues, sequences and blocks agree."""
        live = {sequence for choices in self._choices.values() for sequence in choices.values()}
        check_sequences(live, list(self._waiting), self._running, self.config.max_num_seqs)
        self.kv.check_integrity(self._running)
