"""Input buffers of a step, at addresses that never change, so that recorded forward passes stay valid.

Owns: one arena of bytes, and in it one buffer for each flat array of a step. Never does: decide what is in them (the
persistent batch fills them). Called by: the persistent batch (writes), the forward pass (reads).

On the CPU the device's arena is the host's. Elsewhere both have the same layout, and `send` copies what has changed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from typing import Final

import numpy as np
import torch
from torch import Tensor

from core.api.step_limits import StepLimits
from core_runtime.contracts import Downloads, Uploads
from core_runtime.executor.constraints.mask_buffers import MaskBuffers
from core_runtime.executor.steps.device_tables import DeviceTables, TableColumns
from core_runtime.executor.steps.staging import Staging
from core_runtime.sampling.device_rows import DeviceRows
from core_runtime.sampling.logprob_rows import MOST_LOGPROBS, words_of

Array = tuple[tuple[int, ...], torch.dtype]
"""Shape and dtype."""

ALIGNMENT: Final = 64
"""Bytes of a cache line, and of the widest vector."""

LEAST_CHANGES: Final = 1024
"""Blocks for which a step has room at least; more take another copy."""


SAMPLED: Final[tuple[tuple[tuple[int, ...], torch.dtype], ...]] = (
    ((), torch.int64),
    ((), torch.float32),
    ((), torch.int64),
    ((), torch.float64),
    ((), torch.float32),
    ((), torch.int64),
    ((), torch.int64),
    ((5,), torch.int64),
)
"""Columns of sampling rows: row of logits, temperature, top-k, top-p, min-p score; for a reported row: its index and
the number of logprobs. The key of a row changes in every step and comes last, so that it lies next to the positions.
"""


class StepBuffer:
    """One array of a step's arena.

    array: numpy view of the host's bytes.
    tensor: the same place on the device; on the CPU the same memory.
    """

    __slots__ = ("_begin", "_row_bytes", "_staging", "array", "tensor")

    def __init__(self, host: Tensor, device: Tensor, begin: int, staging: Staging | None) -> None:
        self.array: np.ndarray = host.numpy()
        self.tensor = device
        self._begin = begin
        self._row_bytes = self.array.strides[0]
        self._staging = staging

    def changed(self, rows: int) -> None:
        """Mark the first `rows` rows as changed by the host."""
        if self._staging is not None:
            self._staging.changed(self._begin, self._begin + rows * self._row_bytes)

    def upload(self, rows: int) -> Tensor:
        """Mark the first `rows` rows as changed, and return them on the device; they are valid once the buffers are sent."""
        self.changed(rows)
        return self.tensor[:rows]


def _parts(
    limits: StepLimits,
    tables: tuple[int, int, int],
    num_sampled: int,
    *,
    sends_changes: bool,
    adapters: bool,
    rotary: bool,
) -> list[list[Array]]:
    """Return the shapes and types of the arrays of a step, part by part. tables: groups, sequences, blocks of each."""
    num_groups, max_num_seqs, _ = tables
    num_changes = max(LEAST_CHANGES, 2 * num_groups * max_num_seqs)
    one_each = (max_num_seqs,), torch.int64
    tokens = (limits.tokens,), torch.int64
    return [
        [tokens, ((limits.logit_rows,), torch.int64), ((max_num_seqs + 1,), torch.int32)],
        [one_each] * 2 if num_sampled else [],
        [one_each] if sends_changes else [],
        [((num_sampled, *shape), dtype) for shape, dtype in SAMPLED] if num_sampled else [],
        [((num_changes,), torch.int64), ((num_changes,), torch.int32)] if sends_changes else [],
        [((max_num_seqs,), torch.int32), tokens],
        [tokens] * num_groups,
        [((limits.tokens,), torch.int32)] if adapters else [],
        [tokens] if rotary else [],
        [] if sends_changes else [(tables[1:], torch.int32)] * num_groups,
    ]


class StepBuffers:
    """The buffers of one model's steps: at most T tokens, B sequences, R rows of logits and M blocks a sequence.

    token_ids: int64 [T].
    logit_rows: int64 [R].
    positions: int64 [T].
    seq_lens: int32 [B].
    cu_seqlens_q: int32 [B + 1].
    slot_mappings: int64 [T] for each KV group.
    adapter_rows: int32 [T], table row of each token's adapter, -1 for none; None: the engine has no adapters.
    rotary: int64 [T], see `BatchView`; None: it is the positions.
    block_tables: int32 [B, M] for each KV group. An asynchronous device has its own, see `tables`; otherwise they are last
        in the arena.
    num_sampled: rows whose sampling columns the device reads from memory of its own; 0: the host samples.
    num_mask_words: words of a row's token mask.
    uploads: a runtime whose device has memory of its own and copies asynchronously.
    beside: the buffers of another model whose steps have the same sequences.
    adapters: whether steps may have adapters.
    rotary: whether steps have a column `rotary`.
    state_blocks: blocks of a state for each KV group, 0 for groups with keys; empty: no group has states.

    tables: brings the block tables to an asynchronous device; None: they are sent whole.
    sampled: the sampling columns, or None.
    taken: int64 [B], twice, or None: rows of the previous step whose tokens the device takes, and their token indices in
        this step.

    The tokens come first, and whatever a steady step leaves as it is before the keys, so that a step whose tokens the
    device drew itself sends only the bytes from the keys on.
    """

    def __init__(
        self,
        limits: StepLimits,
        max_blocks_per_seq: int,
        device: torch.device,
        num_groups: int = 1,
        uploads: Uploads | None = None,
        num_sampled: int = 0,
        num_mask_words: int = 0,
        beside: StepBuffers | None = None,
        *,
        adapters: bool = False,
        rotary: bool = False,
        state_blocks: Sequence[int] = (),
    ) -> None:
        max_num_seqs = limits.sequences
        tables = num_groups, max_num_seqs, max_blocks_per_seq
        sends_changes = isinstance(uploads, Downloads)
        parts = _parts(limits, tables, num_sampled, sends_changes=sends_changes, adapters=adapters, rotary=rotary)
        made = iter(self._make([array for part in parts for array in part], device, uploads))
        first, taken, slots, sampled, changes, last, mappings, rows, turned, whole = [
            list(islice(made, len(one))) for one in parts
        ]
        self.token_ids, self.logit_rows, self.cu_seqlens_q = first
        self.taken = (taken[0], taken[1]) if taken else None
        self.sampled: DeviceRows | None = None
        if sampled:
            masks = MaskBuffers(num_sampled, num_mask_words, device, uploads)
            self.sampled = _device_rows(sampled, num_sampled, device, masks)
        self.seq_lens, self.positions = last
        self.slot_mappings = mappings
        self.adapter_rows = rows[0] if rows else None
        self.rotary = turned[0] if turned else None
        self.tables: DeviceTables | None = None
        self.block_tables = whole
        self.state_blocks = state_blocks or [0] * num_groups
        if sends_changes:
            columns = TableColumns(*slots, *changes)
            self._send_changes(DeviceTables(tables, device, columns, None if beside is None else beside.tables))

    def _send_changes(self, tables: DeviceTables) -> None:
        """Use block tables that lie on the device, to which only changes are sent."""
        self.tables = tables
        nothing = torch.empty((0, tables.rows[0].shape[-1]), dtype=torch.int32)
        self.block_tables = [StepBuffer(nothing, rows, 0, None) for rows in tables.rows]

    @property
    def shared(self) -> bool:
        """Whether the device reads the host's memory, so that nothing needs to be copied."""
        return self._staging is None

    def sources(self, group: int, table: Tensor) -> Tensor | None:
        """Return the part of a group's table [B, M] with the blocks in which states are read; None for keys."""
        count = self.state_blocks[group]
        return table[:, count : 2 * count] if count else None

    def send(self) -> None:
        """Copy everything that changed since the last call to the device."""
        if self._staging is None:
            return
        if self.tables is None:
            self._staging.send()
        else:
            self.tables.send(self._staging.send)

    def _make(
        self,
        arrays: Sequence[Array],
        device: torch.device,
        uploads: Uploads | None,
    ) -> list[StepBuffer]:
        sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in arrays]
        begins = [0]
        for size in sizes:
            end = begins[-1] + size
            begins.append(-(-end // ALIGNMENT) * ALIGNMENT)
        host = torch.zeros(begins[-1], dtype=torch.uint8)
        arena = host
        self._staging: Staging | None = None
        if device.type != "cpu" or uploads is not None:
            arena = torch.zeros(begins[-1], dtype=torch.uint8, device=device)
            self._staging = Staging(host, arena, uploads)
        made: list[StepBuffer] = []
        for (shape, dtype), begin, size in zip(arrays, begins, sizes, strict=False):
            end = begin + size
            here = host[begin:end].view(dtype).view(shape)
            there = arena[begin:end].view(dtype).view(shape)
            made.append(StepBuffer(here, there, begin, self._staging))
        return made


def _device_rows(columns: Sequence[StepBuffer], num_rows: int, device: torch.device, masks: MaskBuffers) -> DeviceRows:
    """Make the device rows from columns in the order of `SAMPLED`."""
    which, temperatures, top_k, top_p, least, told_rows, told_counts, keys = columns
    room = words_of(num_rows, 1 + MOST_LOGPROBS)
    # Tokens and logprobs lie next to each other, so that one copy brings both to the host.
    memory = torch.zeros(num_rows + room, dtype=torch.int64, device=device)
    return DeviceRows(
        which=which,
        keys=keys,
        temperatures=temperatures,
        top_k=top_k,
        top_p=top_p,
        least=least,
        told_rows=told_rows,
        told_counts=told_counts,
        out=memory[:num_rows],
        memory=memory,
        masks=masks,
    )
