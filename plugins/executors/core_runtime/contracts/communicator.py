"""The contract of communicators, by which the ranks of one model exchange tensors.

Owns: `Communicator`, and the optional part of a runtime that makes one. Never does: start a rank, or say what is computed.
Called by: runtimes (they implement these), the worker and the model of a rank (they call these).

All ranks call the same operations in the same order. There are no objects: tensors and bytes of known sizes alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor


class Communicator(Protocol):
    """One rank's end of the group that computes a model.

    rank: index of this rank.
    size: number of ranks.
    capturable: whether a runtime can record `all_reduce` and `all_gather`.

    An operation raises RuntimeError when another rank gave up the step or has ended, TimeoutError when one is silent.
    """

    rank: int
    size: int
    capturable: bool

    def all_reduce(self, x: Tensor) -> None:
        """Replace x, float32 [T, H], by the sum over all ranks.

        Ranks are added as a tree: the first half (of the largest power of two), plus the rest. A result therefore has the
        same bits for 1, 2, 4 and 8 ranks if each rank has added its own part in this way.
        """
        ...

    def all_gather(self, x: Tensor, out: Tensor, start: int, root: int | None = None) -> None:
        """Write x, float32 [T, W], of each rank to out[:, start : start + W] with that rank's own start and W.

        root: the only rank that needs the result; None: all do. `out` of any other rank is undefined.
        """
        ...

    def reduce_scatter(self, x: Tensor, out: Tensor) -> None:
        """Write this rank's part of the sum over all ranks to out, [T / size, H]; x, float32 [T, H], is undefined then."""
        ...

    def all_to_all(self, x: Tensor, out: Tensor) -> None:
        """Send the i-th of `size` equal parts of x to rank i; out has the parts from all ranks in their order."""
        ...

    def broadcast(self, x: Tensor, root: int) -> None:
        """Replace x, contiguous, by the root's."""
        ...


class Link(Protocol):
    """One end of the way for tensors from one rank to another, in the order in which they are sent.

    An operation raises RuntimeError when a rank has ended, TimeoutError when the other one is silent.
    """

    def send(self, x: Tensor) -> None:
        """Send x, contiguous. May return before it has arrived."""
        ...

    def recv(self, x: Tensor) -> None:
        """Replace x, contiguous, by the next tensor, which has its size."""
        ...


@runtime_checkable
class Communicates(Protocol):
    """Optional part of a runtime: its device can compute one of several ranks of a model."""

    def communicator(self, group: Any) -> Communicator:
        """Join a group of ranks. group: what its executor has opened, such as memory that all ranks share."""
        ...


@runtime_checkable
class RowsOfPart(Protocol):
    """Optional part of a linear kernel: it reads the rows of a part of a vocabulary."""

    def rows_of_part(self, ids: Tensor, first: int, whole: int, out: Tensor) -> None:
        """Compute out[T, K] = W[ids - first], and zeros for ids of other parts; ids int64 [T].

        whole: number of ids of all parts. Raises IndexError for an id beyond.
        """
        ...
