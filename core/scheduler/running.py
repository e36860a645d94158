"""The sequences that have a slot, and their frequently used state as columns.

Owns: slots, the running list in the policy's order, the columns by slot, and the view of the decoding sequences.
Never does: decide who runs, or touch blocks. Called by: the scheduler.

A running sequence is either *partial* (its known tokens are not all planned yet) or *decodes* (each step gives it one
token, or a few with drafts). Columns hold the state after all planned steps.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from core.api.messages import NO_HANDLE
from core.api.step_plan import Int32Array, Slot
from core.scheduler.sequence import NO_SLOT, SequenceState

_order = attrgetter("order")
_is_flex = attrgetter("request.flex")


@dataclass(slots=True, frozen=True)
class DecodeView:
    """The sequences that decode, in order; rebuilt when one joins or leaves. Each array has one item for each sequence.

    sequences:      the sequences themselves.
    token_lists:    their known tokens; the lists themselves, no copies.
    slots:          their slots, int32.
    ones:           int32 ones, the number of tokens that each computes.
    last_computed:  number of computed tokens before the step whose token reaches the length limit.
    start_offset:   output index of a step's token, less the computed tokens before the step.
    handles:        client handles under which outputs are sent in columns; negative for none.
    without_handle: rows whose outputs cannot be sent as columns.
    """

    sequences: list[SequenceState]
    token_lists: list[list[int]]
    slots: Int32Array
    ones: Int32Array
    last_computed: Int32Array
    start_offset: Int32Array
    handles: NDArray[np.int64]
    without_handle: list[int]


class RunningSet:
    """Sequences by slot, owned by `Seats`.

    max_num_seqs:   the number of slots.
    sequences:      all running sequences, in the policy's order.
    partial:        the sequences whose known tokens are not all planned, in order.
    length:         int32 by slot, known tokens after all planned steps.
    capacity:       int32 by slot, token positions in its blocks.
    stop_ids:       for each token id the number of running sequences that it would end.
    free_slots:     slots without a sequence.
    num_departures: number of sequences that have left since the start.
    num_flex:       number of sequences of the batch class.
    """

    def __init__(self, max_num_seqs: int) -> None:
        self.max_num_seqs = max_num_seqs
        self.sequences: list[SequenceState] = []
        self.partial: list[SequenceState] = []
        self.length = np.zeros(max_num_seqs, np.int32)
        self.capacity = np.zeros(max_num_seqs, np.int32)
        self.stop_ids: Counter[int] = Counter()
        self.num_departures = 0
        self.num_flex = 0
        self._max_length = np.zeros(max_num_seqs, np.int32)
        self._num_prompt = np.zeros(max_num_seqs, np.int32)
        self._handle = np.zeros(max_num_seqs, np.int64)
        self._by_slot: list[SequenceState | None] = [None] * max_num_seqs
        self.free_slots = list(range(max_num_seqs - 1, -1, -1))
        self._view: DecodeView | None = None

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def is_full(self) -> bool:
        """Whether every slot is taken."""
        return not self.free_slots

    def start(self, sequence: SequenceState) -> None:
        """Give a sequence a slot; it is partial until `begin_decode`."""
        slot = self.free_slots.pop()
        sequence.slot = slot
        self.num_flex += sequence.request.flex
        self._by_slot[slot] = sequence
        self.length[slot] = len(sequence.token_ids)
        self.capacity[slot] = sequence.num_slots
        self._max_length[slot] = sequence.max_length
        self._num_prompt[slot] = sequence.num_prompt_tokens
        # A record is sent with every token of its sequence, so that the client has the newest one whenever it ends.
        tells_more = sequence.record is not None
        self._handle[slot] = NO_HANDLE if tells_more else sequence.request.handle
        self.stop_ids.update(sequence.stop_token_ids)
        insort(self.sequences, sequence, key=_order)
        insort(self.partial, sequence, key=_order)

    def stop(self, sequence: SequenceState) -> Slot:
        """Remove a sequence and free its slot; returns the slot."""
        slot = sequence.slot
        sequence.slot = NO_SLOT
        self.num_departures += 1
        self.num_flex -= sequence.request.flex
        self._by_slot[slot] = None
        self.free_slots.append(slot)
        for token_id in sequence.stop_token_ids:
            self.stop_ids[token_id] -= 1
            if not self.stop_ids[token_id]:
                del self.stop_ids[token_id]
        index = bisect_left(self.sequences, sequence.order, key=_order)
        del self.sequences[index]
        # A partial sequence is not in the view, which then stays valid.
        if not self._leave_partial(sequence):
            self._view = None
        return slot

    def begin_decode(self, sequence: SequenceState) -> None:
        """Turn a partial sequence into one that decodes: the step plans its last known token and gives it another."""
        self._leave_partial(sequence)
        self.length[sequence.slot] += 1
        self._view = None

    def is_partial(self, sequence: SequenceState) -> bool:
        """Whether a running sequence still has known tokens that are not planned. O(log n)."""
        index = bisect_left(self.partial, sequence.order, key=_order)
        return index < len(self.partial) and self.partial[index] is sequence

    def num_others(self, sequences: list[SequenceState]) -> int:
        """Return how many of some running sequences, which are in order, are not of the batch class; they come first."""
        return bisect_left(sequences, True, key=_is_flex) if self.num_flex else len(sequences)

    def is_at_rest(self, sequence: SequenceState) -> bool:
        """Whether a sequence has a slot, and all steps that were planned for it have their results."""
        if sequence.slot == NO_SLOT or sequence.num_planned_tokens > sequence.num_computed_tokens:
            return False
        return bool(self.length[sequence.slot] == len(sequence.token_ids))

    def select_at_rest(self, view: DecodeView, num_parts: int, least: int) -> DecodeView:
        """Return the sequences of a view that are at rest, at most the larger of one part of all and `least`."""
        share = max(-(-len(view.sequences) // num_parts), least)
        return self.select([sequence for sequence in view.sequences if self.is_at_rest(sequence)][:share])

    def without_ending(self, view: DecodeView) -> DecodeView:
        """Leave out sequences that end with the token in flight because it reaches their length limit."""
        rows = (self.length[view.slots] - 1 <= view.last_computed).nonzero()[0]
        if len(rows) == len(view.slots):
            return view
        return self.select([view.sequences[row] for row in rows.tolist()])

    def at(self, slot: Slot) -> SequenceState | None:
        """Return the sequence in a slot, None for a free one."""
        return self._by_slot[slot]

    @property
    def view(self) -> DecodeView:
        """The sequences that decode; built on the first access after a change."""
        if self._view is None:
            self._view = self._make_view()
        return self._view

    def select(self, sequences: list[SequenceState]) -> DecodeView:
        """Return a view of some of the sequences that decode, which must be in order."""
        slots = np.array([sequence.slot for sequence in sequences], np.int32)
        handles = self._handle[slots]
        without_handle = (handles < 0).nonzero()[0]
        return DecodeView(
            sequences=sequences,
            token_lists=[sequence.token_ids for sequence in sequences],
            slots=slots,
            ones=np.ones(len(slots), np.int32),
            # A step with c computed tokens computes the next one and samples another, so the length is then c + 2.
            last_computed=self._max_length[slots] - 2,
            start_offset=1 - self._num_prompt[slots],
            handles=handles,
            without_handle=without_handle.tolist(),
        )

    def _make_view(self) -> DecodeView:
        if not self.partial:
            return self.select(self.sequences.copy())
        partial = set(self.partial)
        decoding = [sequence for sequence in self.sequences if sequence not in partial]
        return self.select(decoding)

    def _leave_partial(self, sequence: SequenceState) -> bool:
        index = bisect_left(self.partial, sequence.order, key=_order)
        if index == len(self.partial) or self.partial[index] is not sequence:
            return False
        del self.partial[index]
        return True
