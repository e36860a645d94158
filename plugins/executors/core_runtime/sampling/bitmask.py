"""Token bitmasks: one bit per entry of the vocabulary, 32 entries per word.

Owns: their layout, which is that of xgrammar. Never does: decide what is allowed. Called by: `core_runtime.sampling.kernel`,
makers of masks.

Bit i of word w (int32, the lowest bit is bit 0) stands for the token 32 * w + i and is set if the token is allowed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from core_runtime.sampling.noise import Float32

WORD_BITS: Final = 32


def num_words(vocab_size: int) -> int:
    """Return the number of words of a mask for `vocab_size` tokens."""
    return -(-vocab_size // WORD_BITS)


def apply_bitmask(logits: Float32, words: NDArray[np.int32]) -> None:
    """Set the logits of forbidden tokens to -inf, in place. logits: float32 [R, V].

    words: int32 [R, num_words(V) or more]. Raises ValueError for another shape or type.
    """
    rows, vocab_size = logits.shape
    expected = num_words(vocab_size)
    is_matrix = words.dtype == np.int32 and words.ndim == 2
    if not is_matrix or len(words) != rows or words.shape[1] < expected:
        raise ValueError(
            f"token bitmasks are {words.dtype} of the shape {words.shape}; expected int32 of the shape "
            f"({rows}, {expected}), which a vocabulary of {vocab_size} tokens has."
        )
    # Little-endian bytes, unpacked from the lowest bit, list the bits in the order of tokens on any machine.
    octets = np.ascontiguousarray(words, "<i4").view(np.uint8)
    bits = np.unpackbits(octets, axis=1, count=vocab_size, bitorder="little")
    np.copyto(logits, -np.inf, where=bits == 0)


def bitmask_of(token_ids: Iterable[int], vocab_size: int) -> NDArray[np.int32]:
    """Return the mask that allows these tokens, int32 [num_words(vocab_size)]."""
    bits = np.zeros(num_words(vocab_size) * WORD_BITS, np.uint8)
    bits[list(token_ids)] = 1
    octets = np.packbits(bits, bitorder="little")
    return octets.view("<i4").astype(np.int32, copy=False)
