"""Results of pooling for users: vLLM's result objects under vLLM's names.

Owns: these objects. Never does: pool. Called by: the output processor, `LLM` and the server.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    """Return the cosine of the angle between two vectors, from -1 to 1; 0 if one of them is zero."""
    a = left.astype(np.float64)
    b = right.astype(np.float64)
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    if lengths == 0.0:
        return 0.0
    return max(-1.0, min(1.0, float(a @ b) / lengths))


def late_interaction(query: Float32, document: Float32) -> float:
    """Return the sum, over the query's vectors [T, H], of each one's largest dot product with one of the document's [U, H]
    (MaxSim, arXiv 2004.12832, section 3.3).
    """
    products = query.astype(np.float64) @ document.astype(np.float64).T
    return float(products.max(axis=1).sum())


def similarity(left: Float32, right: Float32) -> float:
    """Return how well two texts match: the cosine of their vectors, or the late interaction of the vectors of their tokens."""
    return cosine(left, right) if left.ndim == 1 else late_interaction(left, right)


@dataclass(frozen=True, slots=True)
class StepRewards:
    """The classes of tokens that a process reward model is asked for (`--pooler-config.step_tag_id`, `.returned_token_ids`).

    tag: token behind each step, whose classes are given; None: those of all tokens.
    columns: numbers of the classes that are given; empty: all.
    """

    tag: int | None
    columns: tuple[int, ...]

    def of(self, numbers: Float32, token_ids: Sequence[int]) -> Float32:
        """Return the rows and columns of numbers [T, N] that are given. token_ids: of the T tokens."""
        rows = numbers if self.tag is None else numbers[np.asarray(token_ids) == self.tag]
        return rows[:, list(self.columns)] if self.columns else rows


@dataclass(frozen=True, slots=True)
class TextPieces:
    """A text beyond the context, which is pooled in pieces.

    lengths: tokens of each piece. normalize: whether the text's vector gets length 1.
    """

    lengths: tuple[int, ...]
    normalize: bool

    def joined(self, pooled: Sequence[bytes]) -> bytes:
        """Return the mean of the pieces' vectors, float32 [H], in which each counts as often as it has tokens."""
        rows = np.stack([np.frombuffer(one, np.float32).astype(np.float64) for one in pooled])
        mean = (rows * np.array(self.lengths)[:, None]).sum(axis=0) / sum(self.lengths)
        length = float(np.linalg.norm(mean))
        if self.normalize and length:
            mean /= length
        whole: bytes = mean.astype(np.float32).tobytes()
        return whole


@dataclass(slots=True)
class PoolingOutput(Generic[Numbers]):
    """The pooled numbers of one text.

    data: float32 [H], or [T, H] with a vector for each token; an array, or the tensor that `LLM.encode` makes of it.
    """

    data: Numbers


@dataclass(slots=True)
class PoolingRequestOutput(Generic[Said]):
    """The answer to one text.

    request_id:        the engine's id.
    outputs:           the pooled hidden states, or the object that a method makes of them.
    prompt_token_ids:  of the text, as far as it was read.
    num_cached_tokens: how many of these came from the prefix cache.
    finished:          always true.
    late_chunking:     which part of the text each vector belongs to, if that was requested.
    """

    request_id: str
    outputs: Said
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True
    late_chunking: LateChunkingMetadata | None = None

    @classmethod
    def from_base(cls, whole: WholeOutput) -> Self:
        """Convert an answer into this class."""
        return cls(
            whole.request_id,
            cls.said(whole.outputs.data),
            whole.prompt_token_ids,
            whole.num_cached_tokens,
            late_chunking=whole.late_chunking,
        )

    @staticmethod
    def said(numbers: Float32) -> Any:
        """Convert pooled numbers into the output of this class."""
        return PoolingOutput(numbers)


WholeOutput = PoolingRequestOutput[PoolingOutput[Float32]]
"""The answer to one text within the engine's clients."""


@dataclass(slots=True)
class EmbeddingOutput:
    """A vector. embedding: plain numbers."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """Return the size of the vector."""
        return len(self.embedding)


class EmbeddingRequestOutput(PoolingRequestOutput[EmbeddingOutput]):
    """The vector of one text."""

    __slots__ = ()

    @staticmethod
    def said(numbers: Float32) -> EmbeddingOutput:
        """Convert a vector into plain numbers."""
        return EmbeddingOutput(numbers.tolist())


@dataclass(slots=True)
class ClassificationOutput:
    """The numbers of the classes. probs: one for each class."""

    probs: list[float]

    @property
    def num_classes(self) -> int:
        """Return the number of classes."""
        return len(self.probs)


class ClassificationRequestOutput(PoolingRequestOutput[ClassificationOutput]):
    """The classes of one text."""

    __slots__ = ()

    @staticmethod
    def said(numbers: Float32) -> ClassificationOutput:
        """Convert the numbers of classes into plain ones."""
        return ClassificationOutput(numbers.tolist())


@dataclass(slots=True)
class ScoringOutput:
    """The score of a pair of texts: that of a model that reads both, or the cosine of their vectors."""

    score: float


class ScoringRequestOutput(PoolingRequestOutput[ScoringOutput]):
    """The score of one pair of texts."""

    __slots__ = ()

    @staticmethod
    def said(numbers: Float32) -> ScoringOutput:
        """Convert the output for a pair that the model read together into its score."""
        return ScoringOutput(float(numbers[0]))


@dataclass(slots=True)
class PooledOutput(RequestOutput):
    """The last output of a pooling request, within the engine's clients.

    pooled: float32 [H] or [T, H] in the machine's byte order; empty if the request failed.
    num_rows: number of vectors in it; 0: a single vector, not a list.
    chunk: number of tokens per vector; 0: one.
    steps: which classes of tokens are given; None: all.
    """

    pooled: bytes = b""
    num_rows: int = 0
    chunk: int = 0
    steps: StepRewards | None = None

    def whole(self) -> WholeOutput:
        """Return the answer for users."""
        numbers: Float32 = np.frombuffer(self.pooled, np.float32)
        if self.num_rows:
            numbers = numbers.reshape(self.num_rows, -1)
        if self.steps is not None:
            numbers = self.steps.of(numbers, self.prompt_token_ids)
        return PoolingRequestOutput(
            self.request_id, PoolingOutput(numbers), self.prompt_token_ids, self.num_cached_tokens
        )
