"""What users of pooling get back: vLLM's result objects under vLLM's names.

Owns: these objects. Never does: pool. Called by: the output processor, `LLM` and the server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from core_frontend.api.late_chunking import LateChunkingMetadata
from core_frontend.api.outputs import RequestOutput

Float32 = NDArray[np.float32]
Numbers = TypeVar("Numbers")
Said = TypeVar("Said")


def cosine(left: Float32, right: Float32) -> float:
    """Of the angle between two vectors, from -1 to 1; 0 where one of them has no direction."""
    a = left.astype(np.float64)
    b = right.astype(np.float64)
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    if lengths == 0.0:
        return 0.0
    return max(-1.0, min(1.0, float(a @ b) / lengths))


@dataclass(slots=True)
class PoolingOutput(Generic[Numbers]):
    """data: float32 [H], or [T, H] with a vector for each token; an array, or what `LLM.encode` makes of it."""

    data: Numbers


@dataclass(slots=True)
class PoolingRequestOutput(Generic[Said]):
    """The answer to one text.

    request_id:        of the engine.
    outputs:           the pooled hidden states, or what a method makes of them.
    prompt_token_ids:  of the text, as far as it was read.
    num_cached_tokens: of these, which came from the prefix cache.
    finished:          always true.
    late_chunking:     which part of the text each vector is of, where that was asked for.
    """

    request_id: str
    outputs: Said
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True
    late_chunking: LateChunkingMetadata | None = None

    @classmethod
    def from_base(cls, whole: WholeOutput) -> Self:
        """The same answer as this kind has it."""
        return cls(
            whole.request_id,
            cls.said(whole.outputs.data),
            whole.prompt_token_ids,
            whole.num_cached_tokens,
            late_chunking=whole.late_chunking,
        )

    @staticmethod
    def said(numbers: Float32) -> Any:
        """What an answer of this kind holds."""
        return PoolingOutput(numbers)


WholeOutput = PoolingRequestOutput[PoolingOutput[Float32]]
"""The answer to one text inside of the engine's clients."""


@dataclass(slots=True)
class EmbeddingOutput:
    """embedding: as plain numbers."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """How many numbers."""
        return len(self.embedding)


class EmbeddingRequestOutput(PoolingRequestOutput[EmbeddingOutput]):
    """The vector of one text."""

    __slots__ = ()

    @staticmethod
    def said(numbers: Float32) -> EmbeddingOutput:
        """A vector as plain numbers."""
        return EmbeddingOutput(numbers.tolist())


@dataclass(slots=True)
class ClassificationOutput:
    """probs: a number for each class."""

    probs: list[float]

    @property
    def num_classes(self) -> int:
        """How many."""
        return len(self.probs)


class ClassificationRequestOutput(PoolingRequestOutput[ClassificationOutput]):
    """The classes of one text."""

    __slots__ = ()

    @staticmethod
    def said(numbers: Float32) -> ClassificationOutput:
        """The numbers of classes as plain ones."""
        return ClassificationOutput(numbers.tolist())


@dataclass(slots=True)
class ScoringOutput:
    """score: of a pair of texts: what a model says that reads both, or the cosine of their vectors."""

    score: float


class ScoringRequestOutput(PoolingRequestOutput[ScoringOutput]):
    """The score of one pair of texts."""

    __slots__ = ()

    @staticmethod
    def said(numbers: Float32) -> ScoringOutput:
        """Of a pair that the model read together: what it says."""
        return ScoringOutput(float(numbers[0]))


@dataclass(slots=True)
class PooledOutput(RequestOutput):
    """The last output of a request for pooling, inside of the engine's clients.

    pooled: float32 [H] or [T, H] in the machine's byte order; empty when the request failed.
    num_rows: vectors in it; 0: it is one, and no list of them.
    chunk: tokens of each of them; 0: one.
    """

    pooled: bytes = b""
    num_rows: int = 0
    chunk: int = 0

    def whole(self) -> WholeOutput:
        """The answer, for users."""
        numbers: Float32 = np.frombuffer(self.pooled, np.float32)
        if self.num_rows:
            numbers = numbers.reshape(self.num_rows, -1)
        return PoolingRequestOutput(
            self.request_id, PoolingOutput(numbers), self.prompt_token_ids, self.num_cached_tokens
        )
