"""What users of pooling get back: vLLM's result objects under vLLM's names.

Owns: these objects. Never does: pool. Called by: the output processor, `LLM` and the server.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.api.outputs import RequestOutput

Float32 = NDArray[np.float32]


def cosine(left: Float32, right: Float32) -> float:
    """Of the angle between two vectors, from -1 to 1; 0 where one of them has no direction."""
    a = left.astype(np.float64)
    b = right.astype(np.float64)
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    if lengths == 0.0:
        return 0.0
    return max(-1.0, min(1.0, float(a @ b) / lengths))


@dataclass(slots=True)
class PoolingOutput:
    """data: float32 [H], or [T, H] with a vector for each token."""

    data: Float32


@dataclass(slots=True)
class PoolingRequestOutput:
    """The answer to one text.

    request_id:        of the engine.
    outputs:           the pooled hidden states.
    prompt_token_ids:  of the text, as far as it was read.
    num_cached_tokens: of these, which came from the prefix cache.
    finished:          always true.
    """

    request_id: str
    outputs: PoolingOutput
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True


@dataclass(slots=True)
class EmbeddingOutput:
    """embedding: as plain numbers."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """How many numbers."""
        return len(self.embedding)


@dataclass(slots=True)
class EmbeddingRequestOutput:
    """The vector of one text; other fields as in `PoolingRequestOutput`."""

    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True


@dataclass(slots=True)
class ClassificationOutput:
    """probs: a number for each class."""

    probs: list[float]

    @property
    def num_classes(self) -> int:
        """How many."""
        return len(self.probs)


@dataclass(slots=True)
class ClassificationRequestOutput:
    """The classes of one text; other fields as in `PoolingRequestOutput`."""

    request_id: str
    outputs: ClassificationOutput
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True


@dataclass(slots=True)
class ScoringOutput:
    """score: of a pair of texts: what a model says that reads both, or the cosine of their vectors."""

    score: float


@dataclass(slots=True)
class ScoringRequestOutput:
    """The score of one pair of texts; other fields as in `PoolingRequestOutput`."""

    request_id: str
    outputs: ScoringOutput
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True


@dataclass(slots=True)
class PooledOutput(RequestOutput):
    """The last output of a request for pooling, inside of the engine's clients.

    pooled: float32 [H] or [T, H] in the machine's byte order; empty when the request failed.
    tokenwise: whether there is a vector for each token.
    """

    pooled: bytes = b""
    tokenwise: bool = False

    def whole(self) -> PoolingRequestOutput:
        """The answer, for users."""
        numbers: Float32 = np.frombuffer(self.pooled, np.float32)
        if self.tokenwise:
            numbers = numbers.reshape(len(self.prompt_token_ids), -1)
        return PoolingRequestOutput(
            self.request_id, PoolingOutput(numbers), self.prompt_token_ids, self.num_cached_tokens
        )
