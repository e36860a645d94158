"""What steps tell of an answer besides its tokens, as bytes between a worker and the client.

Owns: their form, and the limit of a support. Never does: compute them, or know a request. Called by: workers (they write one
for each sequence of a step that sampled), the frontend (it reads them).
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

SAMPLING_MASK: Final = "sampling_mask"
ROUTED_EXPERTS: Final = "routed_experts"
"""Values of `ModelConfig.tells`."""

MOST_SUPPORT: Final = 2048
"""Largest top_k of a request whose sampling masks are told. Tokens with equal logits at the limit pass together, so that a mask
may have a few more."""

NO_EXPERT: Final = -1
"""Id where a block has no router, or where nothing was computed because the prefix cache had the token."""


class ChosenExperts(msgspec.Struct, array_like=True, frozen=True):
    """The experts of consecutive tokens of a sequence.

    start: position of the first token.
    shape: (tokens, blocks, top_k).
    ids:   int16 of that shape, in the machine's byte order.
    """

    start: int
    shape: tuple[int, int, int]
    ids: bytes

    @classmethod
    def of(cls, start: int, ids: NDArray[np.int16]) -> ChosenExperts:
        """Make it from ids of the shape [tokens, blocks, top_k]."""
        tokens, blocks, top_k = ids.shape
        return cls(start, (tokens, blocks, top_k), ids.tobytes())

    def array(self) -> NDArray[np.int16]:
        """Return the ids, int16 [tokens, blocks, top_k]. Raises ValueError for bytes of another length."""
        return np.frombuffer(self.ids, np.int16).reshape(self.shape)


class AnswerFacts(msgspec.Struct, array_like=True, omit_defaults=True):
    """What one step tells of one sequence.

    supports: for each of the step's tokens the ids that could have been drawn, ascending, int32 in the machine's byte order.
    experts:  of the tokens computed since the last facts; later ones replace earlier ones of the same position, whose token
              was a draft that was rejected.
    """

    supports: list[bytes] = []
    experts: list[ChosenExperts] = []


def encode_facts(facts: AnswerFacts) -> bytes:
    """Return the bytes of `EngineOutput.facts`."""
    return msgspec.msgpack.encode(facts)


def decode_facts(message: bytes) -> AnswerFacts:
    """Return the facts. Raises msgspec.DecodeError for bytes that `encode_facts` did not make."""
    return msgspec.msgpack.decode(message, type=AnswerFacts)


def token_lists(supports: list[bytes]) -> list[list[int]]:
    """Return the ids of each support."""
    return [np.frombuffer(one, np.int32).tolist() for one in supports]


def whole_choice(parts: list[ChosenExperts], num_tokens: int) -> NDArray[np.int16] | None:
    """Return the experts of the first `num_tokens` tokens, int16 [tokens, blocks, top_k]; None without any part.

    Tokens that no part has are NO_EXPERT.
    """
    if not parts:
        return None
    whole = np.full((num_tokens, *parts[0].shape[1:]), NO_EXPERT, np.int16)
    for part in parts:
        room = max(num_tokens - part.start, 0)
        ids = part.array()[:room]
        whole[part.start : part.start + len(ids)] = ids
    return whole
