"""Admission of waiting sequences to a step.

Owns: the conditions of an admission (seat, blocks, reserve, partial prefills) and the trial of suspects. Never does:
order the queue (the policy does) or preempt. Called by: `Scheduler.schedule`, after running sequences were planned.

A step that admits nothing looks at the head of the queue only; an admission costs what the policy's queue costs.
"""

from __future__ import annotations

from typing import cast

from core.api.kv_load import KVLoad
from core.api.policy import WaitingQueue
from core.kv.prefix_hit import PrefixHit
from core.scheduler.planning import StepPlanner
from core.scheduler.sequence import NO_SLOT, SequenceState
from core.scheduler.state import SchedulerState

MAX_KEYS = 1 << 20
"""Limit of keys of all sequences that wait, about 200 bytes each; one more sequence may bring as many as it has blocks."""
LOOK_UPS = 4
"""Limit of sequences that step aside in one step: each takes about a millisecond for a prompt of 8,000 tokens."""


class Admission:
    """Fills the rest of a step's budget with waiting sequences; owned by the scheduler."""

    def __init__(self, state: SchedulerState) -> None:
        self.state = state

    def make_way(self, planner: StepPlanner) -> None:
        """Preempt the batch class, the last first, while others lack slots, blocks or adapters. It runs before all planning."""
        running = self.state.running
        while running.num_flex and self._others_lack_room():
            self.state.preempt(running.sequences[-1], planner.plan)

    def admit(self, planner: StepPlanner, *, flex: bool = False) -> None:
        """Start waiting sequences in the policy's order until one does not fit, or seats or budget are used up.

        flex: the batch class. It leaves some slots for arrivals, and starts nothing that the next step would leave out.
        """
        state = self.state
        state.awaiting.restore_ready()
        state.places.restore_ready()
        if state.running.is_full or planner.budget <= 0 or not (len(state.waiting) or len(state.held)):
            return
        state.settle_all()
        most_awaiting = len(state.awaiting) + LOOK_UPS
        while planner.budget > 0 and len(state.running.free_slots) > state.config.max_num_seqs // 4 * flex:
            first = self._next()
            if first is None or first.request.flex != flex or not self._may_be_tried(first):
                return
            if flex and self._would_be_left_out(planner, first):
                return
            if not state.places.may_start(first):
                state.places.add(first)
            elif not self._try(planner, first) or len(state.awaiting) >= most_awaiting:
                return

    def _would_be_left_out(self, planner: StepPlanner, first: SequenceState) -> bool:
        """Whether a sequence of the batch class has no room in the next steps, or others wait for its adapter's place."""
        return planner.leaves_out or self._lacks_place(first)

    def _lacks_place(self, first: SequenceState | None) -> bool:
        """Whether sequences wait for the places of their adapters, as the first of the batch class would."""
        places = self.state.places
        return len(places) > 0 or (first is not None and not places.has_place(first))

    def mixed_budget(self, least: int) -> int:
        """Return the limit of prompt tokens in the next step if it has streams: `least`, or more while prompts queue up."""
        # The last prompt waits for the decodes of all steps before its own, so few large steps answer a queue sooner. The
        # streams wait for each step, so the limit is shared out among them.
        running = self.state.running
        num_partial = running.num_others(running.partial)
        num_streams = max(running.num_others(running.sequences) - num_partial, 1)
        num_behind = num_partial + self._num_startable() - 1
        return max(least, int(self.state.config.queued_prompts_weight * least * num_behind / num_streams))

    def limiting_argument(self, planner: StepPlanner, *, flex: bool = False) -> str:
        """Return the engine argument whose limit most likely keeps waiting sequences of a class out of a step."""
        state = self.state
        if len(state.running.free_slots) <= state.config.max_num_seqs // 4 * flex:
            return "max_num_seqs"
        first = _peek(state.waiting) if len(state.waiting) else None
        if first is not None and not state.seats.has_room(first.blocks_missing):
            return "kv_cache"
        if flex and self._lacks_place(first):
            return "max_loras"
        if (flex and planner.leaves_out) or (planner.room is not None and planner.room.is_used_up):
            return "max_stall_ms"
        if planner.budget <= 0:
            return "max_num_batched_tokens"
        if first is None and len(state.held):
            return "max_long_partial_prefills"
        if state.running.num_others(state.running.partial):
            return "max_num_partial_prefills"
        return "kv_cache"

    def try_suspect(self, planner: StepPlanner) -> bool:
        """Plan a step for the first suspect alone; False when it lacks blocks, so that others must run on first."""
        state = self.state
        suspect = state.seats.suspects[0]
        if suspect.slot == NO_SLOT:
            kv = state.kv
            # Without a wait for slow places: all other sequences stand still until the suspects are through.
            hit = kv.no_hit() if suspect.needs_whole_prompt else kv.lookup_now(suspect)
            missing = kv.blocks_missing(hit, len(suspect.token_ids))
            if state.running.is_full or not state.seats.has_free(missing) or not state.places.has_place(suspect):
                return False
            self._start(planner, suspect, hit)
        elif state.running.is_partial(suspect):
            planner.plan_chunk(suspect)
        return True

    def _others_lack_room(self) -> bool:
        """Whether a waiting sequence that is not of the batch class lacks a slot, blocks or the place of its adapter."""
        state = self.state
        heads = [_peek(queue) for queue in (state.waiting, state.held) if len(queue)]
        missing = max((head.blocks_missing for head in heads if not head.request.flex), default=-1)
        return len(state.places) > 0 or (missing >= 0 and (state.running.is_full or not state.seats.has_room(missing)))

    def _num_startable(self) -> int:
        """Number of waiting sequences that have slots; 0 when the first lacked blocks and there is no room for all."""
        number = min(len(self.state.waiting), len(self.state.running.free_slots))
        has_room = not number or self.state.seats.has_room(number * _peek(self.state.waiting).blocks_missing)
        return number if has_room else 0

    def _next(self) -> SequenceState | None:
        """Return the next sequence to start, None for none. Long prompts that may not start yet are moved to `held`."""
        state = self.state
        held = state.held
        waiting = state.waiting
        num_long = sum(sequence.is_long and not sequence.request.flex for sequence in state.running.partial)
        may_start_long = num_long < state.config.max_long_partial_prefills
        if len(held) and may_start_long:
            first = _peek(held)
            # A preempted sequence, or one with a higher priority, may still come before the long prompts that were overtaken.
            if not len(waiting) or first.order < _peek(waiting).order:
                return first
        while len(waiting):
            sequence = _peek(waiting)
            sequence.is_long = self._is_long(sequence)
            if may_start_long or not sequence.is_long:
                return sequence
            waiting.pop()
            held.push(sequence)
            sequence.queue = held
        return None

    def _may_be_tried(self, sequence: SequenceState) -> bool:
        """Whether a sequence may be looked up, which may make it step aside for a load."""
        # A sequence that has waited does not step aside again. If it could not start while others wait for loads, the memory
        # of its pages would be kept from them.
        return sequence.load is not None or self.state.awaiting.num_keys < MAX_KEYS

    def _is_long(self, sequence: SequenceState) -> bool:
        config = self.state.config
        threshold = config.long_prefill_token_threshold
        return config.enable_chunked_prefill and 0 < threshold < len(sequence.token_ids)

    def _try(self, planner: StepPlanner, sequence: SequenceState) -> bool:
        """Start a sequence if seat, budget and blocks allow it; False when no later sequence may be tried either."""
        state = self.state
        config = state.config
        # The need of the last attempt, which spares the look-up of a long prompt in every step while the cache is full.
        if not state.seats.has_room(sequence.blocks_missing):
            return False
        state.current = sequence
        hit = state.kv.no_hit() if sequence.needs_whole_prompt else state.kv.lookup(sequence)
        if isinstance(hit, KVLoad):
            # Later sequences may pass meanwhile, hence the True.
            state.awaiting.add(sequence)
            return True
        if sequence.load is not None and sequence.load.failure and sequence.num_cached_tokens < 0:
            self._fail(sequence, sequence.load.failure)
            return True
        num_known = len(sequence.token_ids)
        num_tokens = num_known - hit.num_tokens
        chunk = planner.whole_spans(sequence, hit.num_tokens, planner.chunk(hit.num_tokens, num_tokens))
        if not chunk:
            return False
        if chunk < num_tokens:
            most_partial = config.max_num_partial_prefills if config.enable_chunked_prefill else 0
            if state.running.num_others(state.running.partial) >= most_partial:
                return False
        room = num_known if config.reserve_full_prompt else hit.num_tokens + chunk
        missing = state.kv.blocks_missing(hit, room)
        if not state.seats.has_room(missing):
            sequence.blocks_missing = missing
            return False
        self._start(planner, sequence, hit, chunk)
        return True

    def _fail(self, first: SequenceState, sentence: str) -> None:
        """End all waiting sequences of a request whose pages did not come."""
        for key in self.state.roster.keys_of(first.request.request_id):
            sequence = self.state.roster.find(key)
            if sequence is not None and sequence.num_cached_tokens < 0:
                self.state.report(self.state.end(sequence, "error", sentence, keep_cached=True))

    def _start(self, planner: StepPlanner, sequence: SequenceState, hit: PrefixHit, chunk: int | None = None) -> None:
        state = self.state
        state.start(sequence, hit)
        if chunk is None:
            chunk = planner.chunk(hit.num_tokens, sequence.num_pending)
        chunk = planner.cut(sequence, hit.num_tokens, chunk)
        room = sequence.num_pending if state.config.reserve_full_prompt else chunk
        state.kv.allocate_slots(sequence, room)
        planner.plan_start(sequence, chunk)
        state.current = None


def _peek(queue: WaitingQueue) -> SequenceState:
    return cast(SequenceState, queue.peek())
