"""Attention over keys and values that ranks divide by positions.

Owns: `ContextBackend`, which stands between the layers of a rank and their attention backend. Never does: compute attention, or
decide which ranks form a group. Called by: layers, through the contract `attention`; made by `Ranks`.

A rank stores the pieces of a step's keys that are its own (`Division`). A layer attends in one of two ways, with the same bits.

Records: the ranks gather the queries, each attends over its own keys with the queries of all, and leaves a record for each
query and span; a rank then joins the records of its queries from all ranks, in the order of spans (`SumsParts`).

Gathered keys: the ranks gather the pieces of all blocks that the step reads, in one buffer of a layer's size, and the layer's
own backend attends there. Each row reads the same bytes in the same order as on one rank, whatever the layer is.

A part of the step takes the way that exchanges fewer bytes: records where few queries see many keys, as answers do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from core.api.specs import AttentionSpec, KVLayout, LatentSpec
from core_distributed.context.division import Division
from core_distributed.context.step import StepPart
from core_runtime.contracts import AttentionParams, BatchView, Communicator, SumsParts

Cached = AttentionSpec | LatentSpec
WORD_BYTES = 4


@dataclass(frozen=True, slots=True)
class ContextLayer:
    """A layer bound to this rank's pieces.

    own: the backend's handle of them.
    words: the pieces, float32 [num_blocks, n], as which their bytes travel.
    room: the gathered pieces of all ranks, float32 [room blocks, ranks * n]; layers of one size share it.
    whole: the backend's handle of that room.
    record: numbers of a record (`SumsParts`), 0: keys are gathered in any case.
    """

    own: Any
    words: Tensor
    room: Tensor
    whole: Any
    record: int


@dataclass(frozen=True, slots=True)
class ContextStep:
    """A step's metadata.

    own: the backend's, for writing this rank's pieces.
    parts: all sequences, in their order.
    """

    own: Any
    parts: tuple[StepPart, ...]


class ContextBackend:
    """The backend of layers whose keys and values ranks divide; implements the contracts of attention and latent attention.

    backend: the one that computes.
    division: this rank's place.
    longest: tokens of the longest sequence, drafts included, for which a buffer has room.
    """

    def __init__(self, backend: Any, division: Division, communicator: Communicator, longest: int) -> None:
        self.name: str = backend.name
        self.numerics: str = backend.numerics
        self._backend = backend
        self._division = division
        self._all_gather = communicator.all_gather
        self._all_to_all = communicator.all_to_all
        self._span_keys: int = backend.span_keys if isinstance(backend, SumsParts) else 1
        self._longest = longest
        self._rooms: dict[int, Tensor] = {}

    def kv_layout(self, spec: Cached, block_size: int, dtype: str) -> KVLayout:
        """Return the layout of this rank's piece of a block."""
        layout: KVLayout = self._backend.kv_layout(spec, self._division.piece(block_size), dtype)
        return layout

    def bind(
        self, spec: Cached, block_size: int, dtype: str, raw: Tensor, params: AttentionParams | None = None
    ) -> ContextLayer:
        """Bind a layer. raw: uint8 [num_blocks, bytes of a piece]."""
        given = () if params is None else (params,)
        piece = self._division.piece(block_size)
        room = self._room(raw.shape[1], block_size)
        own = self._backend.bind(spec, piece, dtype, raw, *given)
        whole = self._backend.bind(spec, piece, dtype, room.view(torch.uint8).view(-1, raw.shape[1]), *given)
        record = (
            self._backend.record_floats(own)
            if isinstance(self._backend, SumsParts) and not piece % self._span_keys
            else 0
        )
        return ContextLayer(own, raw.view(torch.float32), room, whole, record)

    def build(self, view: BatchView) -> ContextStep:
        """Describe the step's writes, and the sequences that attend together. Raises ValueError for drafts that are a tree."""
        if view.tails is not None:
            raise ValueError(
                "drafts that are a tree have keys outside their blocks; --decode-context-parallel-size has none"
            )
        piece = self._division.piece(view.block_size)
        slots = self._division.own_slots(view.slot_mapping, view.block_size)
        own = self._backend.build(replace(view, block_size=piece, slot_mapping=slots))
        return ContextStep(own, tuple(self._parts(view)))

    def write(self, handle: ContextLayer, k: Tensor, v: Tensor, metadata: ContextStep) -> None:
        """Store this rank's part of k, v [T, Hkv, D]."""
        self._backend.write(handle.own, k, v, metadata.own)

    def forward(self, handle: ContextLayer, q: Tensor, metadata: ContextStep, out: Tensor) -> None:
        """Compute out [T, Hq, D_v], attention of q [T, Hq, D] over the caches of all ranks."""
        for part in metadata.parts:
            rows = part.rows
            if self._sums_parts(handle, part, q.shape[1]):
                self._join(handle, part, (q[rows],), out[rows])
            else:
                self._gather(handle, part)
                self._backend.forward(handle.whole, q[rows], part.keys.metadata, out[rows])

    def write_latent(self, handle: ContextLayer, c: Tensor, k_pe: Tensor, metadata: ContextStep) -> None:
        """Store this rank's part of c [T, R] and k_pe [T, Dr]."""
        self._backend.write_latent(handle.own, c, k_pe, metadata.own)

    def forward_latent(
        self, handle: ContextLayer, q_latent: Tensor, q_pe: Tensor, metadata: ContextStep, out: Tensor
    ) -> None:
        """Compute out [T, H, R], attention of q_latent [T, H, R] and q_pe [T, H, Dr] over the caches of all ranks."""
        for part in metadata.parts:
            rows = part.rows
            if self._sums_parts(handle, part, q_latent.shape[1]):
                self._join(handle, part, (q_latent[rows], q_pe[rows]), out[rows])
            else:
                self._gather(handle, part)
                self._backend.forward_latent(handle.whole, q_latent[rows], q_pe[rows], part.keys.metadata, out[rows])

    def _sums_parts(self, handle: ContextLayer, part: StepPart, heads: int) -> bool:
        """Whether the records of the part's rows are fewer bytes than the keys that they see; all ranks find the same."""
        if not (handle.record and part.sees_itself):
            return False
        numbers: int = part.records.num_records * heads * handle.record
        gathered: int = len(part.keys.blocks) * handle.words.shape[1]
        return numbers <= gathered

    def _join(self, handle: ContextLayer, part: StepPart, queries: Sequence[Tensor], out: Tensor) -> None:
        """Attend with the queries of all ranks over this rank's keys, and join the records of this rank's queries."""
        division, records = self._division, part.records
        size = records.num_records * out.shape[1] * handle.record
        bases = records.bases * (out.shape[1] * handle.record)
        sent = torch.empty((division.ranks, size))
        members = slice(division.first, division.first + division.size)
        gathered = [self._queries(each)[members] for each in queries]
        self._backend.attend_records(handle.own, gathered, records.own, bases, sent[members])
        received = torch.empty_like(sent)
        self._all_to_all(sent, received)
        piece = records.piece
        self._backend.join_records(handle.own, received[members], records.whole, bases, piece, out)

    def _queries(self, own: Tensor) -> Tensor:
        """Return the queries of all ranks, [ranks, T, H, D], from this rank's, [T, H, D]."""
        rows, heads, width = own.shape
        flat = own.reshape(rows, heads * width)
        every = torch.empty((rows, self._division.ranks * heads * width))
        self._all_gather(flat, every, self._division.rank * heads * width)
        return every.view(rows, self._division.ranks, heads, width).transpose(0, 1)

    def _room(self, piece_bytes: int, block_size: int) -> Tensor:
        """Return the buffer for gathered pieces of one size."""
        found = self._rooms.get(piece_bytes)
        if found is None:
            width = self._division.ranks * piece_bytes // WORD_BYTES
            found = torch.empty((room_blocks(self._longest, block_size), width), dtype=torch.float32)
            self._rooms[piece_bytes] = found
        return found

    def _gather(self, handle: ContextLayer, part: StepPart) -> None:
        """Copy the pieces that a part of the step reads from all ranks to the layer's room."""
        words = handle.words.index_select(0, part.keys.blocks)
        width = words.shape[1]
        self._all_gather(words, handle.room[: len(words)], self._division.rank * width)

    def _parts(self, view: BatchView) -> Iterator[StepPart]:
        """Yield the sequences in parts whose blocks fit the room."""
        limit = room_blocks(self._longest, view.block_size)
        first = held = 0
        for index, length in enumerate(view.seq_lens_list):
            count = -(-length // view.block_size)
            if held + count > limit and index > first:
                yield self._part(view, first, index)
                first, held = index, 0
            held += count
        if first < view.num_seqs:
            yield self._part(view, first, view.num_seqs)

    def _part(self, view: BatchView, first: int, last: int) -> StepPart:
        return StepPart(view, self._division, self._backend, self._span_keys, first, last)


def room_blocks(longest: int, block_size: int) -> int:
    """Return how many blocks a step gathers at a time: those of the longest sequence."""
    return -(-longest // block_size) + 1
