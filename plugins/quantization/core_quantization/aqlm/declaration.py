"""The declaration of an AQLM checkpoint. Torch-free.

Owns: the sizes of codebooks and their limits. Never does: look at a tensor. Called by: the manifest. Source:
transformers' `AqlmConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from core_quantization.declared.refusal import Refusal, known_keys, whole_at

LIMITS: Final = {
    "in_group_size": (8, 256),
    "out_group_size": (1, 256),
    "num_codebooks": (1, 32),
    "nbits_per_codebook": (16, 16),
}
"""Key → (value where the declaration has none, largest value). Codes have 16 bits at most, as the tool stores them."""
NEUTRAL: Final = {"linear_weights_not_to_quantize": "the tensors say which modules are packed"}


@dataclass(frozen=True, slots=True)
class Codebooks:
    """The sizes that all packed modules share.

    inputs: inputs that a vector covers.
    outputs: outputs that a vector covers.
    count: codebooks, whose vectors are added.
    bits: bits of a code; a codebook has 2^bits vectors.
    """

    inputs: int
    outputs: int
    count: int
    bits: int

    @property
    def size(self) -> int:
        """Vectors of a codebook."""
        return 1 << self.bits


def read_declaration(found: Mapping[str, Any]) -> Codebooks:
    """Read a declaration. Raises Refusal with the key that is not served."""
    known_keys("", found, (*LIMITS, "quant_method"), NEUTRAL)
    inputs, outputs, count, bits = (_size(found, key, *limits) for key, limits in LIMITS.items())
    return Codebooks(inputs, outputs, count, bits)


def _size(found: Mapping[str, Any], key: str, usual: int, largest: int) -> int:
    value = found.get(key)
    size = usual if value is None else whole_at(key, value)
    if not 1 <= size <= largest:
        raise Refusal(key, f"a number from 1 to {largest}", size, "download the configuration again")
    return size
