"""Latents whose numbers have 8 bits and a scale for each group of 128 (`--kv-cache-dtype fp8_ds_mla`).

Owns: a token's bytes, and a cache in bfloat16 into which the keys of some sequences are expanded. Never does: attend
(`latent.py` does, in that cache). Called by: `latent.py`, `index.py`, `backend.py`.

The numbers are those of FlashMLA's layout for DeepSeek V3.2. A latent of 512 numbers and a rotated key of 64 take 656 bytes:
512 numbers in float8_e4m3fn; 4 scales in float32, each the largest magnitude of a group divided by 448; the rotated key in
bfloat16. A number is its 8-bit value times its group's scale, rounded to bfloat16. A block holds its tokens' bytes one after
the other.

A row has the bits of a cache in bfloat16 with these numbers, whatever else is computed. Expansion is a few calls of torch,
which no recording holds, so steps of such a cache are not recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from core.api.specs import KV_TYPES, LatentSpec
from core_attention.cpu_paged.metadata import Metadata
from core_runtime.contracts import BatchView

PACKED: Final = "fp8_ds_mla"
GROUP: Final = KV_TYPES[PACKED].group
LARGEST: Final = 448.0
"""Largest number of float8_e4m3fn."""
LEAST_SCALE: Final = torch.finfo(torch.float32).tiny
LANES: Final = 16
"""Keys that lie side by side in a block of the kernel's cache, where they divide it."""
EXPANDED_BYTES: Final = 32 << 20
"""Room for the expanded keys of the sequences that attend together, unless one sequence takes more."""


def pack(c: Tensor, k_pe: Tensor) -> Tensor:
    """Return the bytes of tokens, uint8 [T, bytes], from latents c [T, R] and rotated keys k_pe [T, Dr]."""
    groups = c.float().unflatten(1, (-1, GROUP))
    scales = (groups.abs().amax(-1, keepdim=True) / LARGEST).clamp(min=LEAST_SCALE)
    numbers = (groups / scales).to(torch.float8_e4m3fn).view(torch.uint8).flatten(1)
    rotated = k_pe.to(torch.bfloat16).contiguous().view(torch.uint8)
    return torch.cat([numbers, scales.flatten(1).view(torch.uint8), rotated], dim=1)


def unpack(packed: Tensor, spec: LatentSpec) -> Tensor:
    """Return latents and rotated keys, bfloat16 [T, R + Dr], from the bytes of tokens, uint8 [T, bytes]."""
    scaled = spec.rank + spec.rank // GROUP * 4
    numbers = packed[:, : spec.rank].view(torch.float8_e4m3fn).float().unflatten(1, (-1, GROUP))
    scales = packed[:, spec.rank : scaled].contiguous().view(torch.float32)
    latents = (numbers * scales.unsqueeze(-1)).to(torch.bfloat16).flatten(1)
    return torch.cat([latents, packed[:, scaled:].contiguous().view(torch.bfloat16)], dim=1)


class PackedCache:
    """The packed tokens of one layer.

    raw: uint8 [num_blocks, block bytes], of which each block begins with its tokens; keys of an index may follow.
    token_bytes: of a token, without its key of an index.
    """

    def __init__(self, spec: LatentSpec, block_size: int, raw: Tensor) -> None:
        self._spec = spec
        self._raw = raw
        self.block_size = block_size
        self.token_bytes = KV_TYPES[PACKED].token_bytes(spec) - 2 * spec.index_size
        self._tokens = raw[:, : block_size * self.token_bytes].unflatten(1, (block_size, self.token_bytes))
        self._index = raw[:, block_size * self.token_bytes :].unflatten(1, (block_size, 2 * spec.index_size))

    def write(self, c: Tensor, k_pe: Tensor, slots: Tensor) -> None:
        """Store c [T, R] and k_pe [T, Dr] at slots, int64 [T]; a negative slot is skipped."""
        kept = (slots >= 0).nonzero()[:, 0]
        slots = slots[kept]
        self._tokens[slots // self.block_size, slots % self.block_size] = pack(c[kept], k_pe[kept])

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Copy slots, int64 [n], keys of an index included, to other slots."""
        size = self.block_size
        for part in (self._tokens, self._index):
            part[targets // size, targets % size] = part[sources // size, sources % size]

    def keys(self, blocks: Tensor, offsets: Tensor) -> Tensor:
        """Return the keys of slots, bfloat16 [n, R + Dr]. blocks, offsets: int64 [n]."""
        return unpack(self._tokens[blocks, offsets], self._spec)

    def parts(self, metadata: Metadata) -> Iterator[tuple[slice, Metadata, Tensor]]:
        """Yield the rows of some of the sequences, a step of these alone, and the cache that it reads.

        The cache is bfloat16 in the kernel's layout, [blocks, block_size * (R + Dr)].
        """
        view = metadata.view
        row_bytes = 2 * (self._spec.rank + self._spec.rope_size)
        first = taken = start = row = 0
        for index, length in enumerate([*view.seq_lens_list, None]):
            nbytes = 0 if length is None else length * row_bytes
            if index > first and (length is None or taken + nbytes > EXPANDED_BYTES):
                yield self._part(view, first, index, slice(start, row))
                first, start, taken = index, row, 0
            if length is not None:
                taken += nbytes
                row += view.query_lens[index]

    def _part(self, view: BatchView, first: int, last: int, rows: slice) -> tuple[slice, Metadata, Tensor]:
        """Return the sequences from `first` to before `last`, with their keys. rows: of these sequences."""
        lengths = view.seq_lens_list[first:last]
        columns = max(1, -(-max(lengths) // self.block_size))
        table = view.block_table[first:last, :columns].long()
        is_read = torch.arange(columns) * self.block_size < torch.tensor(lengths).unsqueeze(1)
        read = [table[is_read]]
        tails = None if view.tails is None else view.tails[first:last].long()
        if tails is not None:
            read.append(tails[tails >= 0] // self.block_size)
        blocks, places = torch.unique(torch.cat(read), return_inverse=True)
        here = torch.zeros_like(table)
        here[is_read] = places[: int(is_read.sum())]
        if tails is not None:
            moved = torch.searchsorted(blocks, (tails // self.block_size).clamp(min=0)) * self.block_size
            tails = torch.where(tails < 0, tails, moved + tails % self.block_size).int().contiguous()
        starts = (view.cu_seqlens_q[first : last + 1] - view.cu_seqlens_q[first]).contiguous()
        step = BatchView(
            num_tokens=rows.stop - rows.start, num_seqs=last - first, block_size=self.block_size,
            max_query_len=max(view.query_lens[first:last]), max_seq_len=max(lengths),
            query_lens=view.query_lens[first:last], seq_lens_list=lengths, cu_seqlens_q=starts,
            seq_lens=view.seq_lens[first:last].contiguous(), block_table=here.int().contiguous(),
            slot_mapping=view.slot_mapping[rows], positions=view.positions[rows], tails=tails,
        )  # fmt: skip
        tokens = self._tokens[blocks].flatten(0, 1)
        return rows, described(step), arranged(unpack(tokens, self._spec), self.block_size)


def described(step: BatchView) -> Metadata:
    """Return a step as native kernels read it."""
    table, tails = step.block_table, step.tails
    tables = (step.cu_seqlens_q.data_ptr(), step.seq_lens.data_ptr(), table.data_ptr(), table.stride(0), step.num_seqs)
    return Metadata(step, tables, 0, (0, 0) if tails is None else (tails.data_ptr(), tails.shape[1]))


def arranged(keys: Tensor, block_size: int) -> Tensor:
    """Return whole blocks of keys, [blocks * block_size, D], as the kernel reads bfloat16: [blocks, block_size * D]."""
    width = keys.shape[1]
    if block_size % LANES == 0:
        # Sixteen keys lie side by side, two numbers of each at a time.
        keys = keys.view(-1, LANES, width // 2, 2).transpose(1, 2)
    return keys.reshape(-1, block_size * width)
