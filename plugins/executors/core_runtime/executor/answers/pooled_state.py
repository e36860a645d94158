"""State of a pooled sequence between its chunks.

Owns: what each kind of pooling keeps of the hidden states so far, and its result.
Never does: compute a hidden state. Called by: the persistent batch (has one a slot), `core_runtime.executor.answers.pooled`
(fills it).

Sums are float64 and rows are added one after the other, so the division of a prompt into chunks changes no bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from core.api.pooling import Pooling, PoolingKind

Rows = NDArray[np.float32]


class Kept(Protocol):
    """State of one kind of pooling for one sequence."""

    def take(self, rows: Rows, begin: int) -> None:
        """Add hidden states [n, H] of the tokens from position `begin` on; each token comes once, in order."""

    def vector(self, count: int) -> NDArray[Any]:
        """Return the result for a sequence of `count` tokens: [H] or [T, H]."""


class _Last:
    """Pooling by the last token's state."""

    def __init__(self) -> None:
        self._row: Rows | None = None

    def take(self, rows: Rows, begin: int) -> None:
        # Copied: the rows may share a buffer that the next step overwrites.
        self._row = rows[-1].copy()

    def vector(self, count: int) -> NDArray[Any]:
        assert self._row is not None, "a prompt has a first and a last token"
        return self._row


class _First(_Last):
    """Pooling by the first token's state."""

    def take(self, rows: Rows, begin: int) -> None:
        if begin == 0:
            super().take(rows[:1], begin)


class _Each:
    """No pooling: the states of all tokens."""

    def __init__(self) -> None:
        self._parts: list[Rows] = []

    def take(self, rows: Rows, begin: int) -> None:
        self._parts.append(rows.copy())

    def vector(self, count: int) -> NDArray[Any]:
        return np.concatenate(self._parts)


class _Chunks(_Each):
    """The means of consecutive chunks. size: tokens of a chunk; the last one may have fewer."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def vector(self, count: int) -> NDArray[Any]:
        states = super().vector(count)
        means = []
        for start in range(0, count, self._size):
            means.append(states[start : start + self._size].mean(axis=0, dtype=np.float64))
        return np.stack(means)


class _Largest:
    """Pooling by the maximum of each column."""

    def __init__(self) -> None:
        self._most: Rows | None = None

    def take(self, rows: Rows, begin: int) -> None:
        most = rows.max(axis=0)
        self._most = most if self._most is None else np.maximum(self._most, most)

    def vector(self, count: int) -> NDArray[Any]:
        assert self._most is not None, "a prompt has tokens"
        return self._most


class _Mean:
    """Pooling by the mean: the sum of the states divided by their number."""

    def __init__(self) -> None:
        self._total: NDArray[np.float64] | None = None

    def take(self, rows: Rows, begin: int) -> None:
        weighed = self._weighed(rows, begin)
        # The total so far is the first row of the sum, so that the order of additions is that of one long prompt.
        known = np.zeros((1, rows.shape[1])) if self._total is None else self._total[None]
        self._total = np.add.reduce(np.concatenate([known, weighed]), axis=0)

    def vector(self, count: int) -> NDArray[Any]:
        assert self._total is not None, "a prompt has tokens"
        return self._total / self._divisor(count)

    def _weighed(self, rows: Rows, begin: int) -> NDArray[Any]:
        return rows

    def _divisor(self, count: int) -> float:
        return count


class _RootMean(_Mean):
    """Pooling by the sum of the states divided by the square root of their number."""

    def _divisor(self, count: int) -> float:
        return math.sqrt(count)


class _WeightedMean(_Mean):
    """Pooling by a weighted mean, in which the n-th token weighs n times as much as the first."""

    def _weighed(self, rows: Rows, begin: int) -> NDArray[Any]:
        weights = np.arange(begin + 1, begin + 1 + len(rows), dtype=np.float64)
        return rows * weights[:, None]

    def _divisor(self, count: int) -> float:
        return count * (count + 1) / 2


class _Rest(_Mean):
    """Pooling by the mean of the states behind an instruction. first: position of the first token that counts."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self._first = first

    def take(self, rows: Rows, begin: int) -> None:
        skipped = max(self._first - begin, 0)
        if skipped < len(rows):
            super().take(rows[skipped:], begin + skipped)

    def _divisor(self, count: int) -> float:
        return count - self._first


KEPT: Mapping[PoolingKind, Callable[[], Kept]] = {
    "cls": _First,
    "last": _Last,
    "mean": _Mean,
    "max": _Largest,
    "weighted_mean": _WeightedMean,
    "root_mean": _RootMean,
    "all": _Each,
}


class Pooled:
    """The pooling state of one sequence.

    pooling: pooling parameters of its request.
    adapter_row: row of its adapter in the adapters' tables; -1: it has none.
    """

    __slots__ = ("_kept", "adapter_row", "pooling")

    def __init__(self, pooling: Pooling) -> None:
        self.pooling = pooling
        self.adapter_row = -1
        self._kept: list[Kept] = [_Rest(pooling.second) if kind == "rest" else KEPT[kind]() for kind in pooling.kinds]
        if pooling.chunk:
            self._kept = [_Chunks(pooling.chunk)]

    def take(self, rows: Rows, begin: int) -> None:
        """Add hidden states, see `Kept`. If only the first and last token count, the others may be left out."""
        for kept in self._kept:
            kept.take(rows, begin)

    def vector(self, count: int) -> NDArray[Any]:
        """Return [H], several kinds concatenated, or [T, H]. count: tokens of the sequence."""
        vectors = [kept.vector(count) for kept in self._kept]
        return vectors[0] if len(vectors) == 1 else np.concatenate(vectors)
