"""All sequences of an engine and the ways from one state to another: waiting, running, preempted, ended.

Owns: queues, the running set, who is suspected, and each transition with what it does to blocks, slots and charges.
Never does: decide on a transition. Called by: the scheduler's parts, which decide.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator

from core.api.config import SchedulerConfig
from core.api.messages import EngineOutput, EngineRequest, FinishReason, SchedulerStats
from core.api.policy import SchedulingPolicy
from core.api.step_plan import NO_ROWS, NewSequence, Slot, StepPlan
from core.kv.integrity import IntegrityError
from core.kv.manager import KVManager
from core.kv.prefix import PrefixHit
from core.scheduler.awaiting_kv import AwaitingKV
from core.scheduler.drafts import DraftRules
from core.scheduler.limits import LengthLimits
from core.scheduler.running import RunningSet
from core.scheduler.sequence import NO_SLOT, SequenceState, SequenceStatus

SWEEP_FROM = 64


class SchedulerState:
    """What the parts of the scheduler share.

    choices:     all live sequences, by request id and choice. num_live: how many they are.
    waiting:     those that wait. held: long prompts that others overtook, first in line.
    awaiting:    those whose keys and values are being loaded; others pass them.
    running:     those with a slot.
    suspects:    those of a step that failed; each runs alone before others go on. The first may hold a slot.
    removed:     slots that the worker must hear of in the next plan.
    last_slots:  the slots of the newest plan.
    ended:       outputs of sequences that ended outside of a step.
    num_pressed: live sequences that were preempted for blocks: while there are any, admission keeps a reserve.
    at_work:     the sequence that is being handled, to be blamed when something breaks.
    """

    def __init__(
        self, config: SchedulerConfig, kv: KVManager, policy: SchedulingPolicy, clock: Callable[[], float]
    ) -> None:
        self.config = config
        self.kv = kv
        self.policy = policy
        self.clock = clock
        self.limits = LengthLimits(config.max_model_len, kv)
        self.waiting = policy.make_queue()
        self.held = policy.make_queue()
        self.awaiting = AwaitingKV(kv)
        self.running = RunningSet(config.max_num_seqs)
        self.suspects: deque[SequenceState] = deque()
        self.choices: dict[str, dict[int, SequenceState]] = {}
        self.num_live = 0
        self.removed: list[Slot] = []
        self.last_slots = NO_ROWS
        self.ended: list[EngineOutput] = []
        self.stats = SchedulerStats()
        self.drafts = DraftRules(config.num_speculative_tokens, self.stats)
        self.num_pressed = 0
        self.at_work: SequenceState | None = None
        self._deadlines: list[tuple[float, int, SequenceState]] = []
        self._num_arrivals = 0

    def live(self) -> Iterator[SequenceState]:
        """All sequences that have not ended."""
        return (sequence for choices in self.choices.values() for sequence in choices.values())

    @property
    def num_waiting(self) -> int:
        """Sequences without a slot."""
        queued = len(self.waiting) + len(self.held)
        suspects = sum(suspect.slot == NO_SLOT for suspect in self.suspects)
        return queued + len(self.awaiting) + suspects

    def enter(self, request: EngineRequest, *, alone: bool = False) -> None:
        """Queue a new sequence. alone: before all others, as if it were suspected."""
        arrival = self._num_arrivals
        self._num_arrivals += 1
        sequence = SequenceState(request, self.policy.order(request, arrival), self.limits.max_length, self.clock())
        self._register(sequence, arrival)
        if alone:
            self.suspects.appendleft(sequence)
        else:
            sequence.queue = self.waiting
            self.waiting.push(sequence)

    def adopt(self, sequence: SequenceState) -> None:
        """Queue a sequence of another state, whose blocks and slots are gone."""
        sequence.block_ids = []
        self.kv.free(sequence, keep_cached=False)
        sequence.prefix_keys = []
        sequence.slot, sequence.status = NO_SLOT, SequenceStatus.WAITING
        sequence.drafts, sequence.blocks_missing, sequence.was_preempted = [], 0, False
        if sequence.prompt_logprobs is not None:
            sequence.prompt_logprobs = []
        self._num_arrivals = max(self._num_arrivals, sequence.order[1] + 1)
        self._register(sequence, sequence.order[1])
        sequence.queue = self.waiting
        self.waiting.push(sequence)

    def start(self, sequence: SequenceState, hit: PrefixHit) -> None:
        """Give the next sequence of its queue, or a suspect, a slot and the blocks of its hit."""
        if sequence.queue is not None:
            if sequence.queue.pop() is not sequence:
                raise IntegrityError("waiting_order", f"{sequence.key} was started, but it was not the next one")
            sequence.queue = None
        self.kv.attach(sequence, hit)
        if sequence.num_cached_tokens < 0:
            sequence.num_cached_tokens = sequence.num_computed_tokens
            if self.policy.charges:
                self.policy.charge(sequence.request, sequence.num_pending, 0)
        sequence.status = SequenceStatus.RUNNING
        sequence.blocks_missing = 0
        self.running.start(sequence)

    def introduce(self, sequence: SequenceState, plan: StepPlan) -> None:
        """Tell the worker of a sequence that has just been given a slot and blocks."""
        self.running.capacity[sequence.slot] = sequence.num_slots
        plan.new.append(
            NewSequence(
                sequence.slot,
                sequence.request,
                sequence.output_token_ids,
                sequence.num_computed_tokens,
                [table.copy() for table in sequence.block_ids],
            )
        )

    def preempt(self, sequence: SequenceState, plan: StepPlan) -> None:
        """Send a running sequence back to the queue for want of blocks; it is computed again later."""
        slot = sequence.slot
        for table in (plan.new_block_ids, plan.drafts, plan.draft_budget):
            table.pop(slot, None)
        self.suspend(sequence)
        if sequence not in self.suspects:
            self.queue_again(sequence)
        if not sequence.was_preempted:
            sequence.was_preempted = True
            self.num_pressed += 1
        self.stats.num_preemptions += 1

    def suspend(self, sequence: SequenceState) -> None:
        """Take slot and blocks from a running sequence; its tokens are kept."""
        self.settle(sequence)
        self.kv.free(sequence)
        self.removed.append(self.running.stop(sequence))
        sequence.status = SequenceStatus.WAITING
        sequence.drafts = []
        if sequence.prompt_logprobs is not None:
            sequence.prompt_logprobs = []

    def queue_again(self, sequence: SequenceState) -> None:
        """Put a sequence that ran before into the queue, before all that arrived later."""
        sequence.queue = self.waiting
        self.waiting.restore(sequence)

    def release(self, sequence: SequenceState, *, keep_cached: bool = True) -> None:
        """Forget a sequence, wherever it is. keep_cached: whether the values in its blocks may be trusted."""
        if sequence.queue is not None:
            sequence.queue.remove(sequence)
            sequence.queue = None
        elif sequence.status is SequenceStatus.WAITING_FOR_KV:
            self.awaiting.remove(sequence)
        self.clear(sequence)
        self.settle(sequence)
        sequence.status = SequenceStatus.FINISHED
        self.kv.free(sequence, keep_cached=keep_cached)
        if sequence.slot != NO_SLOT:
            self.removed.append(self.running.stop(sequence))
        self.num_pressed -= sequence.was_preempted
        request_id, choice = sequence.key
        choices = self.choices[request_id]
        del choices[choice]
        if not choices:
            del self.choices[request_id]
        self.num_live -= 1
        if len(self._deadlines) > 2 * self.num_live + SWEEP_FROM:
            self._sweep_deadlines()

    def end(self, sequence: SequenceState, reason: FinishReason, sentence: str, *, keep_cached: bool) -> EngineOutput:
        """Release a sequence and say why."""
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
        )

    def clear(self, sequence: SequenceState) -> None:
        """Suspect a sequence no longer."""
        if self.suspects and sequence in self.suspects:
            self.suspects.remove(sequence)

    def settle(self, sequence: SequenceState) -> None:
        """Charge a sequence's user for what was generated since the last time."""
        num_new = sequence.num_output_tokens - sequence.num_charged_tokens
        if self.policy.charges and num_new > 0:
            sequence.num_charged_tokens += num_new
            self.policy.charge(sequence.request, 0, num_new)

    def expire(self) -> None:
        """End what is past its deadline. O(1) when nothing is."""
        deadlines = self._deadlines
        if not deadlines:
            return
        now = self.clock()
        while deadlines and deadlines[0][0] <= now:
            sequence = heapq.heappop(deadlines)[2]
            if sequence.status is not SequenceStatus.FINISHED:
                sentence = (
                    f"The request's time was up after {now - sequence.entered:.1f} s, with "
                    f"{sequence.num_output_tokens} tokens generated; give it a longer timeout or lower max_tokens."
                )
                self.stats.num_timeouts += 1
                self.ended.append(self.end(sequence, "timeout", sentence, keep_cached=True))

    def _register(self, sequence: SequenceState, arrival: int) -> None:
        """Count a sequence among the living. arrival: tells apart deadlines at the same time."""
        request_id, choice = sequence.key
        self.choices.setdefault(request_id, {})[choice] = sequence
        self.num_live += 1
        if sequence.request.deadline:
            heapq.heappush(self._deadlines, (sequence.request.deadline, arrival, sequence))

    def _sweep_deadlines(self) -> None:
        """Drop the deadlines of ended sequences, so that they hold no memory."""
        self._deadlines = [entry for entry in self._deadlines if entry[2].status is not SequenceStatus.FINISHED]
        heapq.heapify(self._deadlines)
