"""Attention over a part of the keys, whose records other ranks join, on the native kernels.

Owns: the arguments of the two calls (`native/attention_parts.h`). Never does: exchange records, or decide who has which keys.
Called by: `backend.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Protocol

from torch import Tensor

from core_attention.cpu_paged.metadata import Metadata

HEAD = 2
"""Numbers of a record before its sums: the largest score, and the sum of weights."""
LANES = 16
LATENT_SIZES = 6
"""Numbers of a latent layer's shape in the native calls; other layers have more."""


class Handle(Protocol):
    """What both kinds of bound layers have."""

    @property
    def pointer(self) -> int:
        """The cache's address."""
        ...

    @property
    def sizes(self) -> tuple[float, ...]:
        """Arguments of the native kernels, in their order."""
        ...


def record_floats(values: int) -> int:
    """Return the numbers of a record. values: numbers of an output of a head."""
    return HEAD + -(-values // LANES) * LANES


def attend_records(
    native: ModuleType,
    handle: Handle,
    queries: Sequence[Tensor],
    softmax: tuple[float, ...],
    metadata: Metadata,
    bases: Tensor,
    out: Tensor,
) -> None:
    """Write the records of queries [G, T, H, D] to out [G, part]. softmax: scale and cap. See `SumsParts.attend_records`."""
    first = queries[0]
    groups, rows, heads, _ = first.shape
    if rows != metadata.view.num_tokens or out.shape[0] != groups or not out.is_contiguous():
        raise ValueError(
            f"{tuple(first.shape)} queries, {tuple(out.shape)} records: expected {metadata.view.num_tokens} rows"
        )
    places: list[int] = []
    for each in queries:
        if each.stride(3) != 1:
            raise ValueError(f"queries have strides {each.stride()}, expected numbers of a head side by side")
        places += (each.data_ptr(), each.stride(1), each.stride(2), each.stride(0))
    latent = len(queries) == 2
    places += [0] * (8 - len(places))
    cu_seqlens, seq_lens, table, stride, batch = metadata.tables
    native.attention_records(
        *places, groups, handle.pointer, table, stride, metadata.sees_to, *softmax, out.data_ptr(), out.shape[1],
        bases.data_ptr(), int(latent), cu_seqlens, seq_lens, batch, heads, *handle.sizes,
    )  # fmt: skip


def join_records(
    native: ModuleType,
    handle: Handle,
    records: Tensor,
    metadata: Metadata,
    bases: Tensor,
    piece: int,
    sinks: int,
    out: Tensor,
) -> None:
    """Compute out [T, H, D_v] from records [R, part]. sinks: their address, or 0. See `SumsParts.join_records`."""
    if out.shape[0] != metadata.view.num_tokens or not records.is_contiguous() or out.stride(2) != 1:
        raise ValueError(
            f"{tuple(out.shape)} outputs, {tuple(records.shape)} records: expected {metadata.view.num_tokens} rows"
        )
    latent = len(handle.sizes) == LATENT_SIZES
    cu_seqlens, seq_lens, _, _, batch = metadata.tables
    native.attention_join(
        out.data_ptr(), out.stride(0), out.stride(1), sinks, records.data_ptr(), records.shape[1], bases.data_ptr(),
        records.shape[0], piece, int(latent), cu_seqlens, seq_lens, batch, out.shape[1], *handle.sizes,
    )  # fmt: skip
