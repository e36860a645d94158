"""What stands for weights: a number that follows from the sources that they are made of.

Owns: `Weights`, and the arithmetic of tokens. Never does: hold tensors. Called by: the executor (computes), the reloader
(combines sources), the invariants (compute the same again).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from core.api.weights import WeightSource

VOCAB_SIZE = 4096
FIRST_TOKEN = 8
"""Tokens below are never generated."""
_MASK = (1 << 61) - 1


@dataclass(frozen=True, slots=True)
class Weights:
    """seed: differs for weights of different sources. names: of the sources, in their order."""

    seed: int
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, sources: Iterable[WeightSource]) -> Weights:
        """What the checkpoint and these sources make together."""
        names = tuple(source.path or source.digest for source in sources)
        return cls(zlib.crc32("|".join(names).encode()) + 1, names)

    def adapted(self, digest: str) -> Weights:
        """What they are with an adapter; empty: the same."""
        return Weights(self.seed + zlib.crc32(digest.encode()), self.names) if digest else self


def next_digest(state: int, token: int) -> int:
    """Of a prefix that is one token longer."""
    return (state * 1_000_003 + token * 7919 + 12345) & _MASK


def token_of(state: int, choice: int) -> int:
    """The token behind a prefix."""
    return FIRST_TOKEN + (state >> 13 ^ choice * 977) % (VOCAB_SIZE - FIRST_TOKEN)


def token_after(weights: Weights, tokens: Sequence[int], choice: int) -> int:
    """The token that these weights give behind these tokens."""
    state = weights.seed
    for token in tokens:
        state = next_digest(state, token)
    return token_of(state, choice)
