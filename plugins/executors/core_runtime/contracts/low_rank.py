"""The contract of adapters' kernels: what the resident adapters add to the outputs of one layer.

Owns: the table of a layer, and the optional part of providers that have one. Never does: import torch at run time.
Called by: plugins (they implement these), layers and the executor (they call these).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from core_runtime.contracts.linear_kernels import LinearKernel
    from core_runtime.weights.low_rank import LowRank


@dataclass(frozen=True, slots=True)
class LowRankForm:
    """What the table of a layer's adapters is made for.

    shape: (N, K) of the layer. All parts that share the inputs x are one layer here.
    num_rows: rows of the table, the most resident adapters.
    dtype: of A and B, float32, float16 or bfloat16.
    max_rank: the most that the ranks of an adapter's updates may add up to; with several parts, the limit of an adapter's
        rank for each of them.
    segments: the largest number of segments of K, a power of two; there are fewer where K does not divide evenly.
    device: the device of the table and of packed updates.
    """

    shape: tuple[int, int]
    num_rows: int
    dtype: torch.dtype
    max_rank: int
    segments: int
    device: torch.device


class PackedLowRank(Protocol):
    """The updates of one adapter for one layer, as a table's provider computes with them.

    nbytes: bytes of memory on the device.
    """

    nbytes: int


class LowRankTable(Protocol):
    """The resident adapters of one layer, by row, and the kernel that applies them.

    The table has a fixed place in memory, so adapters come and go without a new recording. An adapter takes the memory of
    its own ranks; adapters of one table may differ in ranks and in the outputs that they update.
    Optional part: `Recordable`; a recorded call reads the table when it is replayed.

    form: see `LowRankForm`.
    """

    form: LowRankForm

    def pack(self, updates: Sequence[LowRank]) -> PackedLowRank:
        """Repack the updates of one adapter, on any device; the caller then drops them. May run in any thread, next to steps.

        Raises ValueError unless they fit the layer: see `core_runtime.weights.low_rank.updates_problem`.
        """
        ...

    def set(self, row: int, packed: PackedLowRank) -> None:
        """Put an adapter into a row, between two steps. The table keeps it alive until the row changes."""
        ...

    def clear(self, row: int) -> None:
        """Empty a row, between two steps; an empty row updates nothing."""
        ...

    def __call__(self, x: Tensor, rows: Tensor, out: Tensor) -> None:
        """Apply to each out[t], of [T, N], the updates in row rows[t] of the table for x[t], of [T, K].

        rows: int32 [T] in [-1, num_rows); -1: without an adapter, out[t] stays as it is.

        Sums are in float32, of x as it is given. Each number of A x is summed in equal segments of K, which are added as a
        binary tree (see `SumsInSegments`); B's sum is in the order of the ranks. Where the provider's numerics are the same
        for any batch, so are these: the bits of out[t] depend on x[t], out[t] and the adapter alone.
        """
        ...


class JoinedLinear(Protocol):
    """A linear kernel's product and the updates of adapters after it in one call, with the same bits as both in sequence.

    Optional part: `Recordable`.
    """

    def __call__(self, x: Tensor, rows: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
        """Compute out[T, N] = x[T, K] @ W.T (+ bias), or += with `accumulate`; then apply the updates of `rows` to out."""
        ...


@runtime_checkable
class JoinsProducts(Protocol):
    """A table that can run the layer's product in the same call."""

    def joined(self, linear: LinearKernel) -> JoinedLinear | None:
        """Return product and updates in one call; None if it cannot run this kernel. linear: of the whole layer."""
        ...


@runtime_checkable
class HasLowRank(Protocol):
    """A provider with the operation `low_rank`; the query has the layer's shape, and the dtype of A and B as format."""

    def low_rank(self, form: LowRankForm) -> LowRankTable:
        """Make the table of one layer; all of its rows are empty."""
        ...
