"""A sequence to pool, between its chunks.

Owns: what each kind of pooling keeps of the hidden states that it has seen, and the vector that it makes of them.
Never does: compute a hidden state. Called by: the persistent batch (holds one a slot), `core_runtime.executor.pooled`
(fills it).

Sums are float64 and whole rows are added one after the other, so where a prompt is cut into chunks changes no bit.
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
    """What one kind of pooling keeps of a sequence."""

    def take(self, rows: Rows, begin: int) -> None:
        """Hidden states [n, H] of the tokens from number `begin` on; each token comes once, in order."""

    def vector(self, count: int) -> NDArray[Any]:
        """[H], or [T, H]: of a sequence of `count` tokens."""


class _First:
    """The first token's state."""

    def __init__(self) -> None:
        self._row: Rows | None = None

    def take(self, rows: Rows, begin: int) -> None:
        if begin == 0:
            self._row = rows[0].copy()

    def vector(self, count: int) -> NDArray[Any]:
        assert self._row is not None, "a prompt has a first token"
        return self._row


class _Last:
    """The last token's state."""

    def __init__(self) -> None:
        self._row: Rows | None = None

    def take(self, rows: Rows, begin: int) -> None:
        self._row = rows[-1].copy()

    def vector(self, count: int) -> NDArray[Any]:
        assert self._row is not None, "a prompt has a last token"
        return self._row


class _Each:
    """The states of all tokens."""

    def __init__(self) -> None:
        self._parts: list[Rows] = []

    def take(self, rows: Rows, begin: int) -> None:
        self._parts.append(rows.copy())

    def vector(self, count: int) -> NDArray[Any]:
        return np.concatenate(self._parts)


class _Chunks(_Each):
    """The means of some tokens after the other. size: tokens of each, the last one may have fewer."""

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
    """The largest number of each column."""

    def __init__(self) -> None:
        self._most: Rows | None = None

    def take(self, rows: Rows, begin: int) -> None:
        most = rows.max(axis=0)
        self._most = most if self._most is None else np.maximum(self._most, most)

    def vector(self, count: int) -> NDArray[Any]:
        assert self._most is not None, "a prompt has tokens"
        return self._most


class _Mean:
    """The sum of the states, through their number."""

    def __init__(self) -> None:
        self._total: NDArray[np.float64] | None = None

    def take(self, rows: Rows, begin: int) -> None:
        weighed = self._weighed(rows, begin)
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
    """The sum of the states, through the root of their number."""

    def _divisor(self, count: int) -> float:
        return math.sqrt(count)


class _WeightedMean(_Mean):
    """The mean in which the n-th token weighs n times as much as the first."""

    def _weighed(self, rows: Rows, begin: int) -> NDArray[Any]:
        weights = np.arange(begin + 1, begin + 1 + len(rows), dtype=np.float64)
        return rows * weights[:, None]

    def _divisor(self, count: int) -> float:
        return count * (count + 1) / 2


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
    """What is known of one sequence. pooling: what it asks for."""

    __slots__ = ("_kept", "pooling")

    def __init__(self, pooling: Pooling) -> None:
        self.pooling = pooling
        self._kept: list[Kept] = [KEPT[kind]() for kind in pooling.kinds]
        if pooling.chunk:
            self._kept = [_Chunks(pooling.chunk)]

    def take(self, rows: Rows, begin: int) -> None:
        """See `Kept`; where only the first and the last token count, no others need come."""
        for kept in self._kept:
            kept.take(rows, begin)

    def vector(self, count: int) -> NDArray[Any]:
        """[H], of several kinds one behind the other, or [T, H]. count: tokens of the sequence."""
        vectors = [kept.vector(count) for kept in self._kept]
        return vectors[0] if len(vectors) == 1 else np.concatenate(vectors)
