"""What becomes of a model's hidden states when they are the answer.

Owns: `PoolingConfig` (how a model pools, as its files or the user say) and `Pooling` (what one request asks for, resolved).
Never does: read files, compute. Called by: configuration, messages, the input processor, the worker.
"""

from __future__ import annotations

from typing import Literal

import msgspec

PoolingKind = Literal["cls", "last", "mean", "all"]
"""Which hidden states count: the first token's, the last one's, the mean of all, or each by itself."""


class Pooling(msgspec.Struct, array_like=True, frozen=True):
    """What one request asks for.

    kind:       which hidden states count.
    normalize:  whether vectors get the length 1, after they were cut.
    dimensions: numbers of a vector, the first ones; 0: all.
    """

    kind: PoolingKind
    normalize: bool = False
    dimensions: int = 0

    @property
    def needs_all(self) -> bool:
        """Whether the hidden state of a token other than the last counts, so that no part of the prompt may be skipped."""
        return self.kind != "last"


class PoolingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a model that was loaded for pooling pools.

    kind:         for one vector a text.
    normalize:    vectors get the length 1 unless a request says otherwise.
    size:         numbers of a vector.
    max_tokens:   of the longest text that the model was trained for; None: nobody says.
    dimensions:   sizes to which vectors may be cut; none: any.
    source:       who says so, for people.
    """

    kind: PoolingKind
    normalize: bool
    size: int
    max_tokens: int | None = None
    dimensions: tuple[int, ...] = ()
    source: str = ""

    @property
    def usual(self) -> Pooling:
        """One vector a text, when a request says nothing else."""
        return Pooling(self.kind, self.normalize)
