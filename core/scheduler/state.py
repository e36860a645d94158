"""Transitions of a sequence between its states: waiting, running, preempted, ended.

Owns: each transition with what it does to queues, blocks, slots and charges. Never does: decide on a transition.
Called by: the scheduler's parts, which decide.

The state has two sides: the `Roster` has the live sequences and the queues, `Seats` the slots and blocks of running ones.
"""

from __future__ import annotations

from collections.abc import Callable

from core.api.config import SchedulerConfig
from core.api.messages import EngineOutput, EngineRequest, FinishReason
from core.api.policy import SchedulingPolicy, WaitingQueue
from core.api.stats import SchedulerStats
from core.api.step_plan import MOST_FORCED, NewSequence, StepPlan
from core.kv.manager import KVManager
from core.kv.prefix_hit import PrefixHit
from core.scheduler.adapter_places import AdapterPlaces
from core.scheduler.awaiting_kv import AwaitingKV
from core.scheduler.drafts import DraftRules
from core.scheduler.limits import LengthLimits
from core.scheduler.recorder import Recorder
from core.scheduler.roster import Roster
from core.scheduler.seats import Seats
from core.scheduler.sequence import NO_SLOT, SequenceState, SequenceStatus
from core.scheduler.stall import StallLimit
from core.scheduler.step_advice import StepAdvice
from core.scheduler.step_clock import StepClock
from core.scheduler.step_cost import StepCost


class SchedulerState:
    """The state that the parts of the scheduler share.

    roster:  live sequences and the waiting queues.
    seats:   slots, blocks, suspects; its parts `kv` and `running` are also attributes of this class.
    awaiting: sequences whose keys and values are being loaded; others overtake them.
    places:  sequences whose adapter has no place among those that run; others overtake them.
    stats:   counters since the start.
    drafts:  how many draft tokens a sequence may have.
    recorder: records of sequences whose requests set `explain`.
    step_clock: times the steps; None when nothing depends on their durations.
    flex_cost: its model of costs, for the batch class; None until the first request of that class.
    stall:   limit of the wait of streams for their next token; None: no limit.
    current: the sequence that is being handled; when an operation raises, it counts as the cause.
    step_number: number of the newest step.
    span_tokens: tokens of a span for which the newest step had no room, see `EngineRequest.spans`; the next one leaves it.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        kv: KVManager,
        policy: SchedulingPolicy,
        clock: Callable[[], float],
        cost: StepCost,
        advice: StepAdvice | None,
    ) -> None:
        self.config = config
        self.policy = policy
        self.clock = clock
        self.limits = LengthLimits(config.max_model_len, kv)
        self.roster = Roster(policy)
        self.seats = Seats(config.max_num_seqs, kv)
        self.kv = self.seats.kv
        self.running = self.seats.running
        self.awaiting = AwaitingKV(kv)
        self.places = AdapterPlaces(config.max_adapters, self.running)
        self.stats = SchedulerStats()
        self.drafts = DraftRules(config, self._max_forced(), self.stats, advice)
        self.recorder = Recorder(kv, clock)
        self._cost = cost
        self.flex_cost: StepCost | None = None
        self.step_clock = StepClock(cost, clock) if config.learns_costs else None
        self.stall: StallLimit | None = None
        if config.max_stall_s and self.step_clock is not None:
            self.stall = StallLimit(config.max_stall_s, config.max_num_seqs, self.stats, self.step_clock)
        self.current: SequenceState | None = None
        self.step_number = 0
        self.span_tokens = 0
        self._ended: list[EngineOutput] = []

    def _max_forced(self) -> int:
        """Limit of forced drafts of a sequence; 0 for a model with states that has no spare blocks to roll them back."""
        states = self.kv.states
        has_way_back = states.can_roll_back or not states.num_blocks
        if not has_way_back:
            return 0
        return min(MOST_FORCED, self.config.num_speculative_tokens or MOST_FORCED)

    def renewed(self, kv: KVManager) -> SchedulerState:
        """Return a state without sequences, on an empty cache; counters, costs and the choice of drafts go on."""
        fresh = SchedulerState(self.config, kv, self.policy, self.clock, self._cost, self.drafts.advice)
        fresh.stats, fresh.drafts, fresh.stall = self.stats, self.drafts, self.stall
        fresh.step_clock, fresh.flex_cost = self.step_clock, self.flex_cost
        kv.num_query_tokens, kv.num_hit_tokens = self.kv.num_query_tokens, self.kv.num_hit_tokens
        kv.num_external_tokens = self.kv.num_external_tokens
        # The worker may still have a sequence in any slot, so the next plan removes them all.
        fresh.seats.put_back_removed(range(self.config.max_num_seqs))
        return fresh

    @property
    def waiting(self) -> WaitingQueue:
        """The queue of waiting sequences."""
        return self.roster.waiting

    @property
    def held(self) -> WaitingQueue:
        """The queue of long prompts that others have overtaken; they come first when they may start."""
        return self.roster.held

    @property
    def num_waiting(self) -> int:
        """Number of live sequences without a slot."""
        num_aside = len(self.awaiting) + len(self.places)
        return self.roster.num_queued + num_aside + self.seats.num_suspects_waiting

    def enter(self, request: EngineRequest, *, alone: bool = False) -> None:
        """Queue a new sequence. alone: compute it before all others and alone, as a suspect."""
        arrival = self.roster.next_arrival()
        order = self.policy.order(request, arrival)
        sequence = SequenceState(request, order, self.limits.max_length, self.clock())
        self.drafts.enter(sequence, len(self.roster))
        if request.flex and self.flex_cost is None:
            # Without a clock of the scheduler, the engine's model has another teacher, so this one learns by itself.
            self.step_clock = self.step_clock or StepClock(StepCost.restored(self._cost.state()), self.clock)
            self.flex_cost = self.step_clock.cost
        if alone:
            self.seats.suspect([sequence])
        else:
            self.roster.queue(sequence)
        self.recorder.enter(sequence)
        # Last, because the policy is a plugin: a sequence whose push raised must not count as live.
        self.roster.enter(sequence, arrival)

    def adopt(self, sequence: SequenceState) -> None:
        """Queue a sequence of another state object, whose blocks and slots are lost."""
        self.recorder.enter(sequence)
        self.recorder.lose(sequence)
        # These are ids of the old pool; freed into the new one they would break its counts.
        sequence.block_ids = []
        self.kv.free(sequence, keep_cached=False)
        sequence.prefix_keys = []
        sequence.slot = NO_SLOT
        sequence.status = SequenceStatus.WAITING
        sequence.num_drafts = 0
        sequence.num_unsettled = 0
        sequence.blocks_missing = 0
        # The seats are new and have not counted it among those that were preempted.
        sequence.was_preempted = False
        if sequence.prompt_logprobs is not None:
            sequence.prompt_logprobs = []
        self.roster.queue(sequence)
        self.roster.enter(sequence, arrival=sequence.order[1])

    def start(self, sequence: SequenceState, hit: PrefixHit) -> None:
        """Give a sequence, the next of its queue or a suspect, a slot and the blocks of its prefix hit."""
        self.roster.take_first(sequence)
        self.recorder.start(sequence, hit)
        self.kv.attach(sequence, hit)
        # The first admission only: what is computed again after a preemption is not charged twice.
        if sequence.num_cached_tokens < 0:
            sequence.num_cached_tokens = sequence.num_computed_tokens
            if self.policy.charges:
                self.policy.charge(sequence.request, sequence.num_pending, 0)
        sequence.status = SequenceStatus.RUNNING
        sequence.first_step = self.step_number
        sequence.blocks_missing = 0
        self.running.start(sequence)
        self.drafts.seat(sequence)
        if self.stall is not None:
            self.stall.seat(sequence)

    def introduce(self, sequence: SequenceState, plan: StepPlan) -> None:
        """Add a sequence that has just got a slot and blocks to the plan's `new`, with copies of its tables."""
        self.running.capacity[sequence.slot] = sequence.num_slots
        # Copies, because later steps append to the tables while this plan may still be in flight.
        tables = [table.copy() for table in sequence.block_ids]
        output = sequence.output_token_ids
        new = NewSequence(
            sequence.slot, sequence.request, output, sequence.num_computed_tokens, tables, sequence.max_length
        )
        plan.new.append(new)

    def preempt(self, sequence: SequenceState, plan: StepPlan) -> None:
        """Return a running sequence to the queue for lack of blocks; it is computed again later."""
        slot = sequence.slot
        # The plan may already have blocks and drafts for it, and the blocks may go to another sequence at once.
        plan.new_block_ids.pop(slot, None)
        plan.num_drafts.pop(slot, None)
        plan.draft_budget.pop(slot, None)
        self.suspend(sequence)
        if sequence not in self.seats.suspects:
            self.roster.queue_again(sequence)
        self.seats.press(sequence)
        if sequence.record is not None:
            sequence.record.num_preemptions += 1
        self.stats.num_preemptions += 1

    def suspend(self, sequence: SequenceState) -> None:
        """Free the slot and blocks of a running sequence; its tokens are kept."""
        self.settle(sequence)
        self.recorder.lose(sequence)
        if self.stall is not None:
            self.stall.unseat(sequence)
        self.kv.free(sequence, at_rest=self.running.is_at_rest(sequence))
        self.seats.empty(sequence)
        sequence.status = SequenceStatus.WAITING
        sequence.num_drafts = 0
        sequence.num_unsettled = 0
        if sequence.prompt_logprobs is not None:
            sequence.prompt_logprobs = []

    def release(self, sequence: SequenceState, *, keep_cached: bool = True) -> None:
        """Drop a sequence in whatever state it is. keep_cached: whether the values in its blocks may be trusted."""
        self.roster.remove(sequence)
        self.seats.clear(sequence)
        self.settle(sequence)
        sequence.status = SequenceStatus.FINISHED
        self.kv.free(sequence, keep_cached=keep_cached, at_rest=self.running.is_at_rest(sequence))
        if sequence.slot != NO_SLOT:
            self.seats.empty(sequence)
        self.seats.forget(sequence)
        self.recorder.end(sequence)
        self.roster.leave(sequence)

    def end(
        self, sequence: SequenceState, reason: FinishReason, sentence: str | None, *, keep_cached: bool
    ) -> EngineOutput:
        """Release a sequence and return its last output, with the finish reason; `sentence` is its stop reason."""
        self.release(sequence, keep_cached=keep_cached)
        return EngineOutput(
            sequence.request.request_id,
            sequence.request.choice,
            sequence.num_output_tokens,
            [],
            finish_reason=reason,
            stop_reason=sentence,
            num_cached_tokens=max(sequence.num_cached_tokens, 0),
            handle=sequence.request.handle,
            record=sequence.record,
        )

    def report(self, output: EngineOutput) -> None:
        """Keep the output of a sequence that ended outside a step; the next step's outputs include it."""
        self._ended.append(output)

    def take_reports(self) -> list[EngineOutput]:
        """Return and clear the outputs given to `report` since the last call."""
        ended = self._ended
        self._ended = []
        return ended

    @property
    def has_unfinished(self) -> bool:
        """Whether any sequence is live, or an end must still be reported to the worker or a client."""
        return bool(len(self.roster) or self.seats.has_removed or self._ended)

    def settle(self, sequence: SequenceState) -> None:
        """Charge a sequence's user for the tokens generated since the last charge."""
        num_new = sequence.num_output_tokens - sequence.num_charged_tokens
        if self.policy.charges and num_new > 0:
            sequence.num_charged_tokens += num_new
            self.policy.charge(sequence.request, 0, num_new)

    def settle_all(self) -> None:
        """Settle all that run: a fair policy orders its queue by what users have been charged, down to the newest token."""
        if self.policy.charges:
            for sequence in self.running.sequences:
                self.settle(sequence)

    def expire(self) -> None:
        """End sequences that are past their deadline. O(1) when there are none."""
        if not self.roster.has_deadlines:
            return
        now = self.clock()
        for sequence in self.roster.take_late(now):
            seconds = now - sequence.entered
            sentence = (
                f"The request's time was up after {seconds:.1f} s, with "
                f"{sequence.num_output_tokens} tokens generated; give it a longer timeout or lower max_tokens."
            )
            self.stats.num_timeouts += 1
            output = self.end(sequence, "timeout", sentence, keep_cached=True)
            self.report(output)
