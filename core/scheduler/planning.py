"""Planning of one step: how many tokens each sequence computes in it.

Owns: the token budget, chunks of prompts, the growth of running sequences and preemption. Never does: admit (admission
does) or read results. Called by: `Scheduler.schedule`.

Decodes come first and get their token (and drafts), so that no prompt delays them. The rest of the budget goes to prompts
that have begun, then to waiting sequences. When no sequence has drafts, all decodes are planned at once, as arrays;
planning them one after the other gives the same plan.

A step that is planned ahead of results assumes the greatest length that each of its sequences may have by then.
"""

from __future__ import annotations

from typing import Final, cast

import numpy as np

from core.api.step_plan import Int32Array, StepPlan
from core.scheduler.running import DecodeView
from core.scheduler.sequence import NO_SLOT, SequenceState
from core.scheduler.stall import PromptRoom
from core.scheduler.state import SchedulerState
from core.scheduler.step import Chunk, Step
from core.scheduler.step_cost import StepCost

FLEX_LIMIT_S: Final = 0.05
"""Limit of the predicted seconds of a step with the batch class, where stalls have none: arrivals wait for that step."""

PIECES: Final = 4
"""Pieces of a prompt for each of the steps in flight that share no sequence: the first and the last piece keep some of the
steps waiting."""
LEAST_PIECE: Final = 64
"""Tokens of a prompt that are not divided any further."""


class StepPlanner:
    """Builds one step.

    budget:       tokens of the step.
    mixed_budget: limit of prompt tokens in a step that also gives a sequence a token, which waits for the whole step.
    leaves_out:   whether a decode of the batch class has no room.
    room:         seconds left for prompts of the class that is planned; None: no limit.
    vectorized:   False plans every sequence on its own, for comparison.
    """

    def __init__(self, state: SchedulerState, budget: int, mixed_budget: int, *, vectorized: bool = True) -> None:
        self.state = state
        self.plan = StepPlan()
        self.step = Step(self.plan)
        self.budget = budget
        self.leaves_out = False
        self._flex_limit_s = state.config.max_stall_s or FLEX_LIMIT_S
        self._whole_budget = budget
        self._mixed_budget = mixed_budget
        self._vectorized = vectorized
        self._apart = self._least_apart = 1
        cost = state.stall.cost if state.stall else state.flex_cost if state.running.num_flex else None
        self.room = None if cost is None else PromptRoom(cost, self._flex_limit_s, is_soft=state.stall is None)
        self._query_lens: Int32Array | None = None
        self._pending: Int32Array | None = None
        self._chunk_starts: list[int] = []
        self._chunk_slots: list[int] = []

    def keep_apart(self, num_steps: int, least: int) -> None:
        """Plan only sequences that await no token, an equal share of all for each of `num_steps` steps in flight.

        least: number of sequences that are not divided any further.
        """
        self._apart = num_steps
        self._least_apart = least

    def plan_decodes(self, *, in_flight: bool) -> None:
        """Give each decoding sequence its next token. in_flight: whether the previous step has no result yet."""
        running = self.state.running
        view = running.view
        num_first = running.num_others(view.sequences)
        if num_first < len(view.slots):
            view = self._with_fitting(view, max(num_first, 1))
        if self._apart > 1:
            view = running.select_at_rest(view, self._apart, self._least_apart)
        elif in_flight and len(view.slots):
            view = running.without_ending(view)
        if len(view.slots) > self.budget:
            # The list is in the policy's order, so the first ones are served.
            view = running.select(view.sequences[: self.budget])
        if len(view.slots) and not self._plan_together(view):
            view = self._plan_one_by_one(view)
        if not len(view.slots):
            return
        plan = self.plan
        plan.slots = view.slots
        if self._query_lens is None or self._pending is None:
            plan.query_lens = view.ones
            plan.total_num_tokens = len(view.slots)
            plan.num_computed = running.length[view.slots] - 1
        else:
            plan.query_lens = self._query_lens
            plan.total_num_tokens = int(self._query_lens.sum())
            plan.num_computed = running.length[view.slots] - self._pending
        # Last of all: `length` counts tokens after all planned steps, `num_computed` above is from before this one.
        running.length[view.slots] += 1
        self.step.decodes = view
        if self.state.kv.snapshots is not None:
            plan.moved_states |= self.state.kv.keep_states(view.sequences, view.slots, plan.num_computed)
        self.budget -= plan.total_num_tokens
        # From here on prompts only: each of their tokens makes the streams of this step wait longer. The batch class may wait.
        if not view.sequences[0].request.flex:
            self.budget = min(self.budget, self._mixed_budget)
            if self.room is not None:
                self.room.admit_streams(plan)

    def plan_chunks(self, *, flex: bool = False) -> None:
        """Give prompts of a class that have begun their next chunks, as far as budget and blocks allow.

        flex: the batch class, after all else. Its prompts get the time that is left, or a few tokens of an empty step.
        """
        if flex and self.state.flex_cost is not None:
            room = self.room = PromptRoom(self.state.flex_cost, self._flex_limit_s)
            room.admit_streams(self.plan)
            for start, chunk in zip(self._chunk_starts, self.step.chunks, strict=True):
                room.take(start, chunk.num_tokens, completes=False)
            if room.is_used_up and (len(self.plan.slots) or self._chunk_slots):
                self.budget = 0
        # A copy, because a chunk may preempt later sequences of this list; these have no slot any more.
        for sequence in self.state.running.partial.copy():
            if self.budget <= 0:
                return
            if sequence.slot != NO_SLOT and sequence.request.flex == flex:
                self.plan_chunk(sequence)

    def plan_start(self, sequence: SequenceState, num_tokens: int) -> None:
        """Plan the first chunk of a sequence that has just been started, with blocks for it."""
        self._reserve_for_drafts(sequence, num_tokens)
        # `introduce` sends the whole table, with the blocks just reserved for drafts: sent twice, they would be added twice.
        self.plan.new_block_ids.pop(sequence.slot, None)
        self.state.introduce(sequence, self.plan)
        self._add_chunk(sequence, num_tokens)

    def chunk(self, start: int, num_tokens: int) -> int:
        """Return how many of the `num_tokens` known tokens of a sequence from position `start` on this step computes."""
        config = self.state.config
        threshold = config.long_prefill_token_threshold
        if threshold > 0 and config.enable_chunked_prefill:
            num_tokens = min(num_tokens, threshold)
        if self._apart > 1 and config.enable_chunked_prefill:
            # Several pieces are in flight at a time: a single one would keep the other steps waiting.
            num_tokens = min(num_tokens, max(-(-(start + num_tokens) // (PIECES * self._apart)), LEAST_PIECE))
        if self.room is not None and config.enable_chunked_prefill:
            num_tokens = self.room.chunk(start, num_tokens)
        return min(num_tokens, self.budget)

    def cut(self, sequence: SequenceState, start: int, num_tokens: int) -> int:
        """Shorten a chunk so that it ends at a block edge whose state is worth keeping; returns its number of tokens."""
        snapshots = self.state.kv.snapshots
        if snapshots is not None and self.state.config.enable_chunked_prefill:
            num_tokens = snapshots.chunk(sequence, start, num_tokens)
        return self.whole_spans(sequence, start, num_tokens)

    def whole_spans(self, sequence: SequenceState, start: int, num_tokens: int) -> int:
        """Change a chunk that ends within a span: it ends before the span or, where it begins there, with it. Returns its
        number of tokens; 0: the rest of this step has no room for a span, so that the next one leaves some.

        A span exceeds every limit of prompts but that of the step itself, or it would never be computed.
        """
        end = start + num_tokens
        for first, stop in sequence.request.spans:
            if first < end < stop:
                if start < first:
                    return first - start
                if stop - start <= self._whole_budget - self.plan.total_num_tokens:
                    return stop - start
                self.state.span_tokens = stop - start
                return 0
        return num_tokens

    def finish(self) -> Step:
        """Join the rows of decodes and chunks, add the removals, and return the step."""
        plan = self.plan
        seats = self.state.seats
        if self._chunk_slots:
            plan.slots = _joined(plan.slots, self._chunk_slots)
            plan.query_lens = _joined(plan.query_lens, [chunk.num_tokens for chunk in self.step.chunks])
            plan.num_computed = _joined(plan.num_computed, self._chunk_starts)
        plan.removed = seats.take_removed()
        has_changed = plan.removed or plan.new or plan.num_drafts
        has_lengths = self._chunk_slots or self._query_lens is not None
        # An idle plan is not computed, so a plan after it may repeat the one before it.
        repeats = not self.step.is_idle and seats.repeats(plan.slots)
        plan.same_batch = repeats and not has_changed and not has_lengths
        has_drafts = plan.num_drafts or plan.draft_budget
        self.step.one_each = self._query_lens is None and not has_drafts
        self.step.num_departures = seats.running.num_departures
        return self.step

    def _with_fitting(self, view: DecodeView, least: int) -> DecodeView:
        """Leave out decodes of the batch class that do not fit beside the prompts due; all others, or one, are `least`."""
        state = self.state
        prompts = [*state.running.partial]
        if len(state.waiting):
            prompts.append(cast(SequenceState, state.waiting.peek()))
        due = min(sum(prompt.num_pending for prompt in prompts if not prompt.request.flex), self._mixed_budget)
        keys = np.cumsum(state.running.length[view.slots], dtype=np.int64)
        tokens = np.cumsum([1 + sequence.num_drafts for sequence in view.sequences])
        room = PromptRoom(cast(StepCost, state.flex_cost), self._flex_limit_s)
        fitting = room.fitting_decodes(due, tokens, keys, least, is_flex=view.sequences[0].request.flex)
        self.leaves_out = fitting < len(keys)
        return state.running.select(view.sequences[:fitting]) if self.leaves_out else view

    def _plan_together(self, view: DecodeView) -> bool:
        """Plan all decodes at once; False, with nothing allocated, when a sequence has drafts or blocks are too few."""
        running = self.state.running
        drafts = self.state.drafts
        if not self._vectorized or drafts.are_wanted or drafts.are_in_play(running.sequences):
            return False
        lengths = running.length[view.slots]
        is_full = lengths > running.capacity[view.slots]
        rows = is_full.nonzero()[0]
        if not len(rows):
            return True
        sequences = [view.sequences[row] for row in rows.tolist()]
        grown = self.state.kv.allocate_next(sequences, lengths[rows].tolist())
        # Too few blocks for all: a sequence has to be preempted, which is decided one by one.
        if grown is None:
            return False
        slots = view.slots[rows]
        self.plan.new_block_ids = dict(zip(slots.tolist(), grown, strict=True))
        running.capacity[slots] = [sequence.num_slots for sequence in sequences]
        return True

    def _plan_one_by_one(self, view: DecodeView) -> DecodeView:
        """Plan decodes in order, with drafts, preempting the last ones for blocks; returns the view of the remaining ones.

        Drafts take no budget that another sequence needs: the tokens left once each sequence has its known ones, and each
        prompt one, are divided equally among the sequences still to come.
        """
        state = self.state
        budget = self.budget
        planned: list[SequenceState] = []
        lens: list[int] = []
        pending: list[int] = []
        due = [self._num_pending(sequence) for sequence in view.sequences]
        may_start = not state.running.is_full and (len(state.waiting) or len(state.held))
        num_prompts = len(state.running.partial) + bool(may_start)  # all that have begun, and one that may start
        num_spare = max(budget - sum(due) - max(num_prompts, state.span_tokens), 0)
        state.span_tokens = 0
        num_left = len(due) + num_prompts
        for sequence, num_pending in zip(view.sequences, due, strict=True):
            # Undivided, the drafts of the first sequences took the whole budget in every step, and the last ones and all
            # prompts never got a token (tests/simulation/known/12-drafts-of-the-first.json).
            share = num_spare // num_left
            num_left -= 1
            # Without a slot it was preempted just now, when an earlier sequence needed its blocks.
            if budget < num_pending or sequence.slot == NO_SLOT:
                continue
            state.current = sequence
            num_known = int(state.running.length[sequence.slot])
            most_drafts = state.drafts.fitting(sequence, num_known, num_pending, state.kv.snapshots)
            num_drafts = self._grow(sequence, min(most_drafts, share))
            if num_drafts is not None:
                num_tokens = num_pending + num_drafts
                state.drafts.begin(sequence, self.plan, num_drafts)
                state.kv.states.begin_step(sequence, num_drafts)
                planned.append(sequence)
                lens.append(num_tokens)
                pending.append(num_pending)
                budget -= num_tokens
                num_spare -= num_drafts
        state.current = None
        # Without these columns every row computes one token, and the plan says so with fewer arrays.
        if any(num_tokens != 1 for num_tokens in lens):
            self._query_lens = np.array(lens, np.int32)
            self._pending = np.array(pending, np.int32)
        if len(planned) == len(view.sequences):
            return view
        return state.running.select(planned)

    def _num_pending(self, sequence: SequenceState) -> int:
        """Known tokens that a decode's next step computes: one, or all since the state to which it was rolled back."""
        return sequence.num_pending if sequence.is_rolled_back else 1

    def _grow(self, sequence: SequenceState, num_drafts: int) -> int | None:
        """Allocate blocks for a decoding sequence, dropping its drafts first and then preempting the last sequences.

        Returns how many drafts it may verify, or None when it was preempted itself. A sequence alone always gets blocks,
        because none grows beyond the capacity of the whole cache.
        """
        state = self.state
        length = int(state.running.length[sequence.slot])
        # Steps in flight may accept all of their drafts, so there must be room for the longest outcome.
        most_known = length + sequence.num_unsettled
        lookahead = state.drafts.order(sequence, self.plan, length + 1, sequence.num_unsettled + num_drafts)
        while True:
            # The last token of a sequence is never computed, hence the - 1.
            end = min(most_known + num_drafts, sequence.max_length - 1)
            num_tokens = end - sequence.num_computed_tokens
            block_ids = state.kv.allocate_slots(sequence, num_tokens, lookahead)
            if block_ids is not None:
                self._append_blocks(sequence, block_ids)
                return num_drafts
            # The cheapest loss first: drafts that are not proposed yet, then those to verify, then a sequence's blocks.
            if lookahead:
                lookahead = 0
                state.drafts.withdraw(sequence, self.plan)
                continue
            if num_drafts:
                num_drafts = 0
                state.drafts.withdraw(sequence, self.plan)
                continue
            victim = state.running.sequences[-1]
            state.preempt(victim, self.plan)
            if victim is sequence:
                return None

    def _append_blocks(self, sequence: SequenceState, block_ids: list[list[int]]) -> None:
        if not block_ids:
            return
        before = self.plan.new_block_ids.get(sequence.slot)
        if before is not None:
            block_ids = [first + second for first, second in zip(before, block_ids, strict=True)]
        self.plan.new_block_ids[sequence.slot] = block_ids
        self.state.running.capacity[sequence.slot] = sequence.num_slots

    def _reserve_for_drafts(self, sequence: SequenceState, num_tokens: int) -> None:
        """Order proposals after the next chunk, of `num_tokens`, if it completes the sequence and blocks are free."""
        state = self.state
        length = len(sequence.token_ids)
        if sequence.num_planned_tokens + num_tokens < length:
            state.drafts.follow(sequence, self.plan)
            return
        lookahead = state.drafts.order(sequence, self.plan, length + 1, 0)
        if not lookahead:
            return
        block_ids = state.kv.allocate_slots(sequence, sequence.num_pending, lookahead)
        if block_ids is None:
            state.drafts.withdraw(sequence, self.plan)
        else:
            self._append_blocks(sequence, block_ids)

    def plan_chunk(self, sequence: SequenceState) -> None:
        """Plan one chunk, a smaller one when blocks are short.

        A sequence that gets no block waits, unless nothing else is planned: then later sequences are preempted for it.
        """
        state = self.state
        state.current = sequence
        planned = sequence.num_planned_tokens
        num_tokens = self.chunk(planned, len(sequence.token_ids) - planned)
        if state.kv.snapshots is not None:
            num_needed = state.kv.num_growing * (num_tokens // state.kv.block_size + 2)
            state.kv.snapshots.keep(sequence, planned, num_needed=num_needed)
            if state.kv.snapshots.is_short and self.plan.total_num_tokens:
                sequence.num_waits += 1
                return  # the next step has the blocks that copies of this one take
        num_tokens = self.cut(sequence, planned, num_tokens)
        if not num_tokens:
            return
        ahead = planned - sequence.num_computed_tokens
        while True:
            block_ids = state.kv.allocate_slots(sequence, ahead + num_tokens)
            if block_ids is not None:
                break
            # The blocks that are left may do for a part, and a part now is better than a whole that waits.
            part = self.whole_spans(sequence, planned, max(1, num_tokens // 2))
            if part < num_tokens:
                num_tokens = part
                continue
            behind = state.running.partial[-1]
            # As long as the step does some work, blocks will be freed in time. An empty step would change nothing, for ever.
            if len(self.plan.slots) or self._chunk_slots or behind is sequence:
                return
            state.preempt(behind, self.plan)
        self._append_blocks(sequence, block_ids)
        self._reserve_for_drafts(sequence, num_tokens)
        self._add_chunk(sequence, num_tokens)

    def _add_chunk(self, sequence: SequenceState, num_tokens: int) -> None:
        start = sequence.num_planned_tokens
        completes = start + num_tokens == len(sequence.token_ids)
        sequence.num_planned_tokens += num_tokens
        self._chunk_slots.append(sequence.slot)
        self._chunk_starts.append(start)
        self.step.chunks.append(Chunk(sequence, num_tokens, completes))
        self.budget -= num_tokens
        self._mixed_budget -= num_tokens
        self.plan.total_num_tokens += num_tokens
        if completes:
            # This sequence samples, so it is a stream that waits for the step like those that decode.
            self.budget = min(self.budget, self._mixed_budget)
            self.state.running.begin_decode(sequence)
            self.state.drafts.begin(sequence, self.plan, 0)
        if self.room is not None:
            self.room.take(start, num_tokens, completes=completes)
            if self.room.is_used_up:
                self.budget = 0


def _joined(rows: Int32Array, more: list[int]) -> Int32Array:
    """Return a column of the plan with further rows appended, as int32."""
    return np.concatenate((rows, np.array(more, np.int32)))
