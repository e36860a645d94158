"""Sequence states in blocks of the KV cache, as tensors.

Owns: their place in the bytes of a layer; reads and writes them for a whole batch. Never does: know what they mean.
Called by: attention backends in torch that serve layers with a state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from core_runtime.contracts import BatchView


class StateStore:
    """The states of one layer. An attention backend owns it.

    raw: uint8 [num_blocks, block_bytes]; a state occupies the first blocks of its row of the block table, in order.
    shape: shape of one state.
    dtype: dtype of a state.
    """

    def __init__(self, raw: Tensor, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> None:
        self.raw = raw
        self.shape = tuple(shape)
        self.dtype = dtype
        self.nbytes = math.prod(self.shape) * dtype.itemsize
        block_bytes = raw.shape[1]
        self.num_blocks = max(-(-self.nbytes // block_bytes), 1)
        self._words = _in_words(raw)

    def read(self, view: BatchView) -> Tensor:
        """Return a copy of the states, [B, *shape]; zero for a sequence that begins in this step, whatever its blocks
        contain.
        """
        states = self.held(view)
        begins = self.begins(view)
        if begins:
            states[begins] = 0
        return states

    def held(self, view: BatchView) -> Tensor:
        """Return a copy of what the blocks contain in which the step reads, [B, *shape]."""
        table = view.block_table if view.state_sources is None else view.state_sources
        blocks = self.raw.index_select(0, self._blocks(table))
        pages = blocks.view(view.num_seqs, -1)[:, : self.nbytes].contiguous()
        return pages.view(self.dtype).view(-1, *self.shape)

    def one(self, view: BatchView, index: int) -> Tensor:
        """Return the state of one sequence of a step, [*shape]; not a copy where its blocks are adjacent."""
        table = view.block_table if view.state_sources is None else view.state_sources
        blocks = table[index, : self.num_blocks].tolist()
        first = blocks[0]
        if blocks == list(range(first, first + self.num_blocks)):
            pages = self.raw[first : first + self.num_blocks].reshape(-1)
        else:
            pages = self.raw[blocks].view(-1)
        return pages[: self.nbytes].view(self.dtype).view(self.shape)

    def move(self, view: BatchView, index: int) -> None:
        """Copy the state of one sequence to where the step writes it, if that is elsewhere than where it reads it."""
        if view.state_sources is None:
            return
        target = view.block_table[index, : self.num_blocks].long()
        source = view.state_sources[index, : self.num_blocks].long()
        if not torch.equal(source, target):
            self.raw[target] = self.raw[source]

    def put(self, blocks: Tensor, state: Tensor) -> None:
        """Write one state [*shape] to its blocks, int64 [n] with n >= `num_blocks`."""
        flat = state.to(self.dtype).contiguous().view(torch.uint8).view(-1)
        padded = F.pad(flat, (0, self.num_blocks * self.raw.shape[1] - self.nbytes))
        self.raw[blocks[: self.num_blocks]] = padded.view(self.num_blocks, -1)

    def begins(self, view: BatchView) -> list[int]:
        """Return the indices of the sequences that begin in this step."""
        lengths = zip(view.seq_lens_list, view.query_lens, strict=True)
        return [index for index, (seq_len, query_len) in enumerate(lengths) if seq_len == query_len]

    def write(self, view: BatchView, states: Tensor) -> None:
        """Write states [B, *shape] back to their blocks."""
        flat = states.to(self.dtype).contiguous().flatten(1)
        pages = flat.view(torch.uint8)
        block_bytes = self.raw.shape[1]
        unused = self.num_blocks * block_bytes - self.nbytes
        padded = F.pad(pages, (0, unused)) if unused else pages
        words = padded.view(-1, block_bytes).view(self._words.dtype)
        self._words.index_copy_(0, self._blocks(view.block_table), words)

    def _blocks(self, table: Tensor) -> Tensor:
        """Return the blocks of the sequences' states, one sequence after the other, int64 [B * num_blocks]."""
        return table[:, : self.num_blocks].flatten().long()


def _in_words(raw: Tensor) -> Tensor:
    """View the bytes as the widest integers that fit, because torch copies selected rows element by element."""
    for dtype in (torch.int64, torch.int32):
        places = (raw.shape[1], raw.stride(0), raw.storage_offset())
        if all(place % dtype.itemsize == 0 for place in places):
            return raw.view(dtype)
    return raw
