"""What each sequence computes in the next step.

Owns: the token budget, chunks of prompts, the growth of running sequences and preemption. Never does: admit (admission
does) or read results. Called by: `Scheduler.schedule`.

First all that decode get their token (and drafts), so that no prompt holds them up; what is left of the budget goes to
prompts that have begun, then to those that wait. When nobody has drafts, the sequences that decode are planned at once,
as arrays; one after the other gives the same plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from core.api.step_plan import Int32Array, StepPlan
from core.scheduler.running import DecodeView
from core.scheduler.sequence import NO_SLOT, SequenceState
from core.scheduler.state import SchedulerState


@dataclass(slots=True)
class Flight:
    """One step between its plan and its result.

    decodes:     the sequences of the plan's first rows. chunks: of the others, with the tokens planned and whether they
                 reach the last known token, so that the step samples.
    num_departures: of the running set when the plan was made: while it is the same, all decodes still run.
    unwritten:   blocks that others may share although this step, or one before it, has yet to write them.
    """

    plan: StepPlan
    decodes: DecodeView | None = None
    chunks: list[tuple[SequenceState, int, bool]] = field(default_factory=list)
    num_departures: int = 0
    unwritten: list[int] = field(default_factory=list)

    def sequences(self) -> list[SequenceState]:
        """All sequences of the step, in batch order."""
        decoding = [] if self.decodes is None else self.decodes.sequences
        return [*decoding, *(sequence for sequence, _, _ in self.chunks)]


class StepPlanner:
    """Builds one plan. budget: tokens of the step. mixed_budget: prompt tokens of a step that gives somebody a token:
    who gets one waits for the whole step. vectorized: False plans every sequence on its own, for comparison.
    """

    def __init__(self, state: SchedulerState, budget: int, mixed_budget: int, *, vectorized: bool = True) -> None:
        self.state = state
        self.plan = StepPlan()
        self.flight = Flight(self.plan)
        self.budget = budget
        self._mixed_budget = mixed_budget
        self._vectorized = vectorized
        self._query_lens: Int32Array | None = None
        self._chunk_starts: list[int] = []
        self._chunk_slots: list[int] = []

    def plan_decodes(self, *, in_flight: bool) -> None:
        """Give each decoding sequence its next token. in_flight: whether the step before has no result yet."""
        running = self.state.running
        view = running.view
        if in_flight and len(view.slots):
            view = self._without_ending(view)
        if len(view.slots) > self.budget:
            view = running.select(view.sequences[: self.budget])
        if not len(view.slots):
            return
        if not self._vectorized or self.state.config.num_speculative_tokens or not self._grow_together(view):
            view = self._plan_one_by_one(view)
        if not len(view.slots):
            return
        plan = self.plan
        plan.slots = view.slots
        plan.query_lens = view.ones if self._query_lens is None else self._query_lens
        plan.total_num_tokens = len(view.slots) if self._query_lens is None else int(self._query_lens.sum())
        plan.num_computed = running.length[view.slots] - 1
        running.length[view.slots] += 1
        self.flight.decodes = view
        self.budget = min(self.budget - plan.total_num_tokens, self._mixed_budget)

    def plan_chunks(self) -> None:
        """Give prompts that have begun their next chunks, as far as the budget and the blocks go."""
        for sequence in self.state.running.partial.copy():
            if self.budget <= 0:
                return
            if sequence.slot != NO_SLOT:
                self.plan_chunk(sequence)

    def plan_start(self, sequence: SequenceState, num_tokens: int) -> None:
        """Plan the first chunk of a sequence that has just been started, with blocks for it."""
        self._reserve_for_drafts(sequence, num_tokens, num_tokens)
        self.plan.new_block_ids.pop(sequence.slot, None)
        self.state.introduce(sequence, self.plan)
        self._add_chunk(sequence, num_tokens)

    def chunk(self, num_tokens: int) -> int:
        """How many of `num_tokens` known tokens of one sequence a step computes."""
        config = self.state.config
        threshold = config.long_prefill_token_threshold
        if threshold > 0 and config.enable_chunked_prefill:
            num_tokens = min(num_tokens, threshold)
        return min(num_tokens, self.budget)

    def finish(self) -> Flight:
        """Put the rows together."""
        plan = self.plan
        if self._chunk_slots:
            lens = [num_tokens for _, num_tokens, _ in self.flight.chunks]
            parts = (plan.slots, self._chunk_slots), (plan.query_lens, lens), (plan.num_computed, self._chunk_starts)
            plan.slots, plan.query_lens, plan.num_computed = (
                np.concatenate((first, np.array(second, np.int32))) for first, second in parts
            )
        plan.removed, self.state.removed = self.state.removed, []
        changed = plan.removed or plan.new or plan.drafts or self._query_lens is not None or self._chunk_slots
        before, self.state.last_slots = self.state.last_slots, plan.slots
        plan.same_batch = not changed and np.array_equal(plan.slots, before)
        self.flight.num_departures = self.state.running.num_departures
        self.flight.unwritten = self.state.kv.take_unwritten()
        return self.flight

    def _without_ending(self, view: DecodeView) -> DecodeView:
        """Leave out those whose token in flight is their last one, whatever it is."""
        rows = (self.state.running.length[view.slots] - 1 <= view.last_computed).nonzero()[0]
        if len(rows) == len(view.slots):
            return view
        return self.state.running.select([view.sequences[row] for row in rows.tolist()])

    def _grow_together(self, view: DecodeView) -> bool:
        """Find a block for each sequence that needs one; False, and nothing is taken, when there are too few."""
        running, kv = self.state.running, self.state.kv
        rows = (running.length[view.slots] > running.capacity[view.slots]).nonzero()[0]
        if not len(rows):
            return True
        sequences = [view.sequences[row] for row in rows.tolist()]
        grown = kv.allocate_next(sequences, running.length[view.slots[rows]].tolist())
        if grown is None:
            return False
        slots = view.slots[rows]
        self.plan.new_block_ids = dict(zip(slots.tolist(), grown, strict=True))
        running.capacity[slots] = [sequence.num_slots for sequence in sequences]
        return True

    def _plan_one_by_one(self, view: DecodeView) -> DecodeView:
        """Plan decodes in order, with drafts, preempting the last ones for blocks; returns those that are left."""
        state, budget = self.state, self.budget
        planned: list[SequenceState] = []
        lens: list[int] = []
        for sequence in view.sequences:
            if budget <= 0 or sequence.slot == NO_SLOT:
                continue
            state.at_work = sequence
            num_tokens = min(1 + len(sequence.drafts), budget)
            if self._grow(sequence, num_tokens):
                planned.append(sequence)
                lens.append(num_tokens)
                budget -= num_tokens
        state.at_work = None
        if any(num_tokens != 1 for num_tokens in lens):
            self._query_lens = np.array(lens, np.int32)
        return view if len(planned) == len(view.sequences) else state.running.select(planned)

    def _grow(self, sequence: SequenceState, num_tokens: int) -> bool:
        """Find blocks for a decoding sequence, preempting the last ones; False when it had to go itself.

        A sequence alone always finds them: none grows beyond what the whole cache holds.
        """
        state, slot = self.state, sequence.slot
        lookahead = 0
        if state.config.num_speculative_tokens:
            lookahead = state.drafts.plan(sequence, self.plan, num_tokens)
        ahead = int(state.running.length[slot]) - len(sequence.token_ids) + sequence.num_pending - 1
        while True:
            block_ids = state.kv.allocate_slots(sequence, num_tokens + ahead, lookahead)
            if block_ids is not None:
                self._append_blocks(sequence, block_ids)
                return True
            if lookahead:
                lookahead = 0
                state.drafts.withdraw(sequence, self.plan)
                continue
            victim = state.running.sequences[-1]
            state.preempt(victim, self.plan)
            if victim is sequence:
                return False

    def _append_blocks(self, sequence: SequenceState, block_ids: list[list[int]]) -> None:
        if block_ids:
            before = self.plan.new_block_ids.get(sequence.slot)
            if before is not None:
                block_ids = [first + second for first, second in zip(before, block_ids, strict=True)]
            self.plan.new_block_ids[sequence.slot] = block_ids
            self.state.running.capacity[sequence.slot] = sequence.num_slots

    def _reserve_for_drafts(self, sequence: SequenceState, num_tokens: int, num_new: int) -> None:
        """Allow proposals after a chunk of `num_tokens`, `num_new` behind the computed ones, if blocks are left."""
        state = self.state
        lookahead = state.drafts.plan(sequence, self.plan, num_tokens) if state.config.num_speculative_tokens else 0
        if lookahead:
            block_ids = state.kv.allocate_slots(sequence, num_new, lookahead)
            if block_ids is None:
                state.drafts.withdraw(sequence, self.plan)
            else:
                self._append_blocks(sequence, block_ids)

    def plan_chunk(self, sequence: SequenceState) -> None:
        """Plan one chunk, a smaller one when blocks are short. One that gets none waits, unless nothing else is planned:
        then those behind it give theirs."""
        state = self.state
        state.at_work = sequence
        planned = sequence.num_planned_tokens
        num_tokens = self.chunk(len(sequence.token_ids) - planned)
        ahead = planned - sequence.num_computed_tokens
        while True:
            block_ids = state.kv.allocate_slots(sequence, ahead + num_tokens)
            if block_ids is not None:
                break
            if num_tokens > 1:
                num_tokens = max(1, num_tokens // 2)
                continue
            behind = state.running.partial[-1]
            if behind is sequence or len(self.plan.slots) or self._chunk_slots:
                return
            state.preempt(behind, self.plan)
        self._append_blocks(sequence, block_ids)
        self._reserve_for_drafts(sequence, num_tokens, ahead + num_tokens)
        self._add_chunk(sequence, num_tokens)

    def _add_chunk(self, sequence: SequenceState, num_tokens: int) -> None:
        start = sequence.num_planned_tokens
        completes = start + num_tokens == len(sequence.token_ids)
        sequence.num_planned_tokens += num_tokens
        self._chunk_slots.append(sequence.slot)
        self._chunk_starts.append(start)
        self.flight.chunks.append((sequence, num_tokens, completes))
        self.budget -= num_tokens
        self._mixed_budget -= num_tokens
        self.plan.total_num_tokens += num_tokens
        if completes:
            self.budget = min(self.budget, self._mixed_budget)
            self.state.running.begin_decode(sequence)
