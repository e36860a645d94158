"""The work of one token, from shapes alone: bytes that it reads, and numbers that it is multiplied with.

Owns: `TokenWork` and its parts. Never does: add up a model's layers (`token_sums` does), or measure. Called by: `core bench
card`, the work of steps.
"""

from __future__ import annotations

import msgspec


class Matrices(msgspec.Struct, frozen=True):
    """Matrices that a token is multiplied with. nbytes: as they are stored. numbers: of weights, each multiplied once."""

    nbytes: float = 0.0
    numbers: int = 0

    def __add__(self, other: Matrices) -> Matrices:
        return Matrices(self.nbytes + other.nbytes, self.numbers + other.numbers)

    def times(self, count: int) -> Matrices:
        """Return as many of them."""
        return Matrices(self.nbytes * count, self.numbers * count)


class KeyWork(msgspec.Struct, frozen=True):
    """The keys of one layer.

    window: the largest number of keys that a token reads; None: all. nbytes: of a key and its value. numbers: that are
    multiplied for each, in all heads.
    """

    window: int | None
    nbytes: int
    numbers: int


class TokenWork(msgspec.Struct, frozen=True, kw_only=True):
    """The work of one token.

    blocks: matrices of all layers without experts. experts: those of the experts that a token takes. head: the output head.
    one_expert: one expert of each layer. num_experts, num_choices: of the layer with the most.
    keys: layers with keys. vocab_size: tokens.
    """

    blocks: Matrices
    experts: Matrices
    head: Matrices
    one_expert: Matrices
    num_experts: int
    num_choices: int
    keys: tuple[KeyWork, ...]
    vocab_size: int

    @property
    def weights(self) -> Matrices:
        """Return all matrices that a token is multiplied with."""
        return self.blocks + self.experts + self.head

    def key_bytes(self, length: int) -> int:
        """Return the bytes of keys and values that a token reads behind `length` others."""
        return sum(layer.nbytes * min(length, layer.window or length) for layer in self.keys)

    def prompt_numbers(self, length: int) -> int:
        """Return the multiplications of a prompt of `length` tokens, of which one has logits."""
        matrices = (self.blocks.numbers + self.experts.numbers) * length + self.head.numbers
        seen = 0
        for layer in self.keys:
            window = min(length, layer.window or length)
            seen += layer.numbers * (window * (window + 1) // 2 + (length - window) * window)
        return matrices + seen
