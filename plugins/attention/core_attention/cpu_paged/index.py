"""The index of a latent layer on the native kernels: its keys, the choice of keys, and attention over the chosen ones.

Owns: the arguments of the calls (`native/index.inc.h`), and the cache of a few rows into which their chosen keys are gathered.
Never does: score, or attend itself. Called by: `backend.py`.

Each row's chosen keys become a sequence of their own, which latent attention reads as any other. A row therefore has the bits
of attention over a sequence of just these keys, and those of attention over the whole sequence where all are chosen.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Final

import torch
from torch import Tensor

from core.api.specs import KV_TYPES
from core_attention.cpu_paged.latent import LatentLayer, attend_latent
from core_attention.cpu_paged.limits import ELEMENTS, GATHERED_BYTES
from core_attention.cpu_paged.metadata import Metadata
from core_attention.cpu_paged.packed_latents import PackedCache, arranged, described
from core_platforms.cpu.checks import check_heads, check_rows
from core_runtime.contracts import BatchView
from core_runtime.specs.chosen_keys import SPAN, row_keys, rows_together

_ITEM_BYTES: Final = {ELEMENTS[name]: KV_TYPES[name].item_bytes for name in reversed(ELEMENTS)}
"""Bytes of a number by the kernels' number of its type; of names with one number the first counts."""
KEPT_STEPS: Final = 64
"""Numbers of rows whose steps are kept: a decoding engine meets a few of them, again for each layer."""


def element_of(layer: LatentLayer) -> int:
    """Return the kernels' number of the type of an index's keys: 16 bits where the cache's numbers have 8."""
    element = int(layer.sizes[4])
    return element if element <= ELEMENTS["float16"] else ELEMENTS["bfloat16"]


def _location(layer: LatentLayer) -> tuple[int, int, int]:
    """Return where the keys begin in a block, the numbers of a key and their element type."""
    dim, _, block_size, _, _, _ = layer.sizes
    token_bytes = int(dim) * item_bytes(layer) if layer.packed is None else layer.packed.token_bytes
    return int(block_size) * token_bytes, layer.spec.index_size, element_of(layer)


def item_bytes(layer: LatentLayer) -> int:
    """Return the bytes of a number of a latent."""
    return _ITEM_BYTES[int(layer.sizes[4])]


def _places(layer: LatentLayer, metadata: Metadata) -> tuple[int, ...]:
    """Return the arguments that locate the keys of a step's sequences."""
    block_size, block_bytes = int(layer.sizes[2]), int(layer.sizes[3])
    return (*metadata.tables, *metadata.tails, layer.pointer, block_size, block_bytes)


def write_index(native: ModuleType, layer: LatentLayer, k: Tensor, metadata: Metadata) -> None:
    """Store k [T, Di] at the step's slots; a negative slot is skipped."""
    rows, stride = check_rows(k, layer.spec.index_size, "k")
    if rows != metadata.view.num_tokens:
        raise ValueError(f"k has {rows} rows, expected {metadata.view.num_tokens}")
    block_size, block_bytes = int(layer.sizes[2]), int(layer.sizes[3])
    cache = (layer.pointer, block_size, block_bytes, *_location(layer))
    native.index_write(k.data_ptr(), stride, metadata.slots, rows, *cache)


def choose(native: ModuleType, layer: LatentLayer, q: Tensor, weights: Tensor, metadata: Metadata, out: Tensor) -> None:
    """Write the chosen positions of each row to out, int32 [T, top_k]; see `ChoosesKeys`."""
    index = layer.spec.index
    assert index is not None, "the layer has no index"
    if metadata.view.max_seq_len <= index.top_k:
        return
    rows, heads, size, q_row, q_head = check_heads(q, "q")
    weight_rows, weights_row = check_rows(weights, index.num_heads, "weights")
    shape = (metadata.view.num_tokens, index.num_heads, index.head_size)
    if (rows, heads, size) != shape or q_head != size or weight_rows != rows:
        raise ValueError(f"q {tuple(q.shape)} and weights {tuple(weights.shape)} do not fit {shape}")
    _check_chosen(out, rows, index.top_k)
    native.index_select(
        q.data_ptr(), q_row, weights.data_ptr(), weights_row, out.data_ptr(), out.stride(0), heads,
        1 / math.sqrt(size), index.top_k, *_places(layer, metadata), *_location(layer),
    )  # fmt: skip


def _check_chosen(chosen: Tensor, rows: int, top_k: int) -> None:
    if chosen.shape != (rows, top_k) or chosen.dtype is not torch.int32 or chosen.stride(1) != 1:
        raise ValueError(f"chosen keys are {chosen.dtype} {tuple(chosen.shape)}, expected int32 {(rows, top_k)}")


class ChosenKeys:
    """Attention over chosen keys. An instance belongs to a backend, and is used by one step at a time."""

    def __init__(self, native: ModuleType) -> None:
        self._native = native
        self._room = torch.empty(0, dtype=torch.uint8)
        self._steps: dict[tuple[int, int, int], Metadata] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of the room so far: it grows to that of the largest step."""
        return int(self._room.numel())

    def attend(
        self, layer: LatentLayer, q_latent: Tensor, q_pe: Tensor, chosen: Tensor, metadata: Metadata, out: Tensor
    ) -> None:
        """Compute out [T, H, R] over each row's chosen keys, some rows at a time."""
        view = metadata.view
        index = layer.spec.index
        assert index is not None, "the layer has no index"
        if view.max_seq_len <= index.top_k:
            attend_latent(self._native, layer, q_latent, q_pe, metadata, out)
            return
        _check_chosen(chosen, view.num_tokens, index.top_k)
        live = sum(view.query_lens)
        if layer.packed is not None:
            self._attend_packed(layer, layer.packed, q_latent, q_pe, chosen[:live], metadata, out)
            return
        blocks = row_keys(index.top_k) // SPAN
        row_bytes = blocks * SPAN * int(layer.sizes[0]) * item_bytes(layer)
        most = rows_together(row_bytes, live, GATHERED_BYTES)
        if self._room.numel() < most * row_bytes:
            self._room = torch.empty(most * row_bytes, dtype=torch.uint8)
        for first in range(0, live, most):
            rows = slice(first, min(first + most, live))
            gathered = self._gather(layer, chosen, rows, metadata, blocks)
            here = layer._replace(pointer=self._room.data_ptr(), sizes=_sizes(layer, row_bytes // blocks))
            attend_latent(self._native, here, q_latent[rows], q_pe[rows], gathered, out[rows])

    def _attend_packed(
        self,
        layer: LatentLayer,
        packed: PackedCache,
        q_latent: Tensor,
        q_pe: Tensor,
        chosen: Tensor,
        metadata: Metadata,
        out: Tensor,
    ) -> None:
        """Compute out over each row's chosen keys, which are expanded. chosen: int32 [live rows, top_k]."""
        view = metadata.view
        owners = torch.repeat_interleave(torch.arange(view.num_seqs), torch.tensor(view.query_lens))
        blocks = row_keys(chosen.shape[1]) // SPAN
        most = rows_together(blocks * SPAN * int(layer.sizes[0]) * 2, len(chosen), GATHERED_BYTES)
        for first in range(0, len(chosen), most):
            rows = slice(first, min(first + most, len(chosen)))
            positions = chosen[rows].long()
            slots = _slots(view, owners[rows], positions, packed.block_size)
            keys = packed.keys(*(part.flatten() for part in (slots // packed.block_size, slots % packed.block_size)))
            room = torch.zeros(len(positions), blocks * SPAN, keys.shape[1], dtype=keys.dtype)
            room[:, : positions.shape[1]] = keys.view(*positions.shape, -1)
            lengths = (positions >= 0).sum(1, dtype=torch.int32)
            step = _step_of_rows(lengths, blocks, positions.shape[1])
            here = layer.reading(arranged(room.flatten(0, 1), SPAN), SPAN)
            attend_latent(self._native, here, q_latent[rows], q_pe[rows], described(step), out[rows])

    def _gather(self, layer: LatentLayer, chosen: Tensor, rows: slice, metadata: Metadata, blocks: int) -> Metadata:
        """Copy the chosen keys of some rows into the room; return a step in which each row is a sequence of these."""
        count, top_k = rows.stop - rows.start, chosen.shape[1]
        step = self._steps.get((count, blocks, top_k))
        if step is None:
            if len(self._steps) == KEPT_STEPS:
                self._steps.clear()
            step = described(_step_of_rows(torch.empty(count, dtype=torch.int32), blocks, top_k))
            self._steps[count, blocks, top_k] = step
        self._native.index_gather(
            chosen.data_ptr(), chosen.stride(0), top_k, rows.start, count, self._room.data_ptr(), blocks * SPAN,
            step.view.seq_lens.data_ptr(), *_places(layer, metadata), int(layer.sizes[0]), int(layer.sizes[4]),
        )  # fmt: skip
        return step


def _step_of_rows(lengths: Tensor, blocks: int, longest: int) -> BatchView:
    """Return a step in which each row is a sequence of its own, and nothing is written. lengths: keys of each, int32 [rows].
    blocks: of each, one after the other.
    """
    count = len(lengths)
    nowhere = torch.full((count,), -1, dtype=torch.int64)
    return BatchView(
        num_tokens=count, num_seqs=count, block_size=SPAN, max_query_len=1, max_seq_len=longest,
        query_lens=[1] * count, seq_lens_list=[], cu_seqlens_q=torch.arange(count + 1, dtype=torch.int32),
        seq_lens=lengths, block_table=torch.arange(count * blocks, dtype=torch.int32).view(count, blocks),
        slot_mapping=nowhere, positions=nowhere,
    )  # fmt: skip


def _slots(view: BatchView, owners: Tensor, positions: Tensor, block_size: int) -> Tensor:
    """Return the slots of positions, int64 [rows, K], in the sequences `owners`, int64 [rows]; those of -1 mean nothing."""
    places = positions.clamp(min=0)
    blocks = view.block_table[owners.unsqueeze(1), places // block_size].long()
    slots = blocks * block_size + places % block_size
    if view.tails is not None:
        depth = view.tails.shape[1]
        nth = places - (view.seq_lens[owners].unsqueeze(1) - depth)
        tails = view.tails[owners].long().gather(1, nth.clamp(0, depth - 1))
        slots = torch.where((nth >= 0) & (tails >= 0), tails, slots)
    return slots


def _sizes(layer: LatentLayer, block_bytes: int) -> tuple[float, ...]:
    """Return the kernel's numbers of the gathered cache."""
    dim, rank, _, _, element, scale = layer.sizes
    return (dim, rank, SPAN, block_bytes, element, scale)
