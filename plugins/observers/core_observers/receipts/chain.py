"""The keyed digest of a prompt and its answers.

Owns: `Chain`. Never does: keep tokens, or know requests. Called by: the issuer of receipts, and `core verify`.

A chain is SHA-256 over blocks of 16 token ids, each over the digest before it. It begins with a secret of 32 random bytes (the
opening), since short texts could otherwise be guessed and tried. After each block it leaves a mark, the first 4 bytes of its
digest, so a difference is found to 16 tokens without the tokens themselves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np

BLOCK: Final = 16
"""Tokens between two marks."""
MARK_DIGITS: Final = 8
"""Hex digits of a mark."""
_BEGIN: Final = b"core receipt 1\0"


class Chain:
    """A chain over token ids. state: the digest so far. marks: hex digits, `MARK_DIGITS` for each block."""

    def __init__(self, state: bytes) -> None:
        self.state = state
        self.marks = ""

    @classmethod
    def opened(cls, opening: bytes) -> Chain:
        """Begin the chain of a prompt. opening: 32 secret bytes."""
        return cls(hashlib.sha256(_BEGIN + opening).digest())

    def choice(self, index: int) -> Chain:
        """Begin the chain of one answer to this prompt."""
        return Chain(hashlib.sha256(self.state + b"choice" + index.to_bytes(4, "little")).digest())

    def extend(self, token_ids: Sequence[int]) -> Chain:
        """Add all tokens; the last block may be shorter. Returns the chain itself."""
        plain = np.asarray(token_ids, np.uint32).astype("<u4").tobytes()
        size = 4 * BLOCK
        marks = []
        for start in range(0, len(plain), size):
            self.state = hashlib.sha256(self.state + plain[start : start + size]).digest()
            marks.append(self.state.hex()[:MARK_DIGITS])
        self.marks += "".join(marks)
        return self

    @property
    def end(self) -> str:
        """Return the digest of everything so far, as hex digits."""
        return self.state.hex()


def first_other_block(said: str, computed: str) -> int | None:
    """Return the index of the first block whose marks differ; None if they are equal."""
    if said == computed:
        return None
    most = max(len(said), len(computed))
    for index, start in enumerate(range(0, most, MARK_DIGITS)):
        if said[start : start + MARK_DIGITS] != computed[start : start + MARK_DIGITS]:
            return index
    return None
