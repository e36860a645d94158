"""The layouts of AWQ: 4-bit integers in words of 32 bits.

Owns: these words. Never does: read a declaration. Called by: the method, for AWQ and AutoRound.

gemm, words along the outputs, eight of them in the order of `PLACES`:
    qweight: int32 [K, N / 8]; qzeros: int32 [groups, N / 8]; scales: [groups, N].
gemv, words along the inputs, in order; the groups of a row are filled up with zeros:
    qweight: int32 [N, K / 8]; qzeros: int32 [N, width]; scales: [N, width * 8].
Without `qzeros` the zero point is 8 everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from core.api.specs import PartPlan, Unsupported
from core_quantization.declared.part import StoredPart
from core_quantization.declared.part_format import Integers, Run, planned
from core_quantization.declared.stored import FLOATS, Wanted

if TYPE_CHECKING:
    from torch import Tensor

    from core_runtime.weights.formats import CanonicalWeight

BITS: Final = 4
IN_A_WORD: Final = 8
PLACES: Final = (0, 4, 1, 5, 2, 6, 3, 7)
"""Position in its word of the integer of each of eight outputs."""


@dataclass(frozen=True, slots=True)
class AWQLayout:
    """The two layouts of AWQ, of the kind `Layout`.

    run: settings of all packed layers.
    group_size: inputs that share a scale; -1: all.
    version: choice of the layout.
    """

    run: Run
    group_size: int
    version: Literal["gemm", "gemv"]

    def plan(self, part: StoredPart) -> PartPlan | Unsupported:
        """Plan the part from names and shapes, see `Layout`."""
        rows, inputs = part.shape
        for what, count in (("inputs", inputs), ("outputs", rows)):
            if count % IN_A_WORD:
                return Unsupported(f"{count} {what} of 4 bits do not fill words of 32 bits")
        if self.group_size > inputs or inputs % self.group_size:
            return Unsupported(f"its {inputs} inputs are not a multiple of {self.group_size}, its group size")
        wanted = self._wanted(part)
        return planned(part, wanted, self._how, self.run)

    def pack(self, part: StoredPart, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """Return the part as a canonical weight, see `Layout`."""
        from core_quantization.declared.bits import held_from_words, unpack_words
        from core_quantization.declared.canonical import integer_weight

        how = self._how(part)
        stored = tensors["qweight"]
        zero_words = tensors.get("qzeros")
        scale = tensors["scales"]
        zeros = None
        if self.version == "gemv":
            count = part.shape[1] // how.group_size
            if zero_words is not None:
                zeros = unpack_words(zero_words, BITS)[:, :count]
            values = held_from_words(stored, BITS, part.shape[1])
            return integer_weight(how, values, scale[:, :count], zeros)
        if zero_words is not None:
            zeros = unpack_words(zero_words, BITS, PLACES).T
        return integer_weight(how, _held(stored), scale.T, zeros)

    def _how(self, part: StoredPart) -> Integers:
        return Integers(
            bits=BITS,
            group_size=part.shape[1] if self.group_size == -1 else self.group_size,
            zeros="qzeros" in part.tensors,
            channel=False,
            ordered=False,
            scale=part.tensors["scales"].dtype,
        )

    def _wanted(self, part: StoredPart) -> list[Wanted]:
        rows, inputs = part.shape
        size = inputs if self.group_size == -1 else self.group_size
        count = inputs // size
        if self.version == "gemm":
            zeros_shape = (count, rows // IN_A_WORD)
            wanted = [
                Wanted("qweight", ("I32",), [(inputs, rows // IN_A_WORD)]),
                Wanted("scales", FLOATS, [(count, rows)]),
            ]
        else:
            width = _gemv_width(count, size)
            zeros_shape = (rows, width)
            wanted = [
                Wanted("qweight", ("I32",), [(rows, inputs // IN_A_WORD)]),
                Wanted("scales", FLOATS, [(rows, width * IN_A_WORD)]),
            ]
        if "qzeros" in part.tensors:
            wanted.append(Wanted("qzeros", ("I32",), [zeros_shape]))
        return wanted


def _held(stored: Tensor) -> Tensor:
    """Convert words [K, N / 8] of version gemm to pairs [N, K / 2], some words at a time so that temporaries stay
    small.
    """
    import torch

    from core_quantization.declared.bits import CHUNK, to_nibbles, unpack_words

    inputs, words = stored.shape
    held = torch.empty((words * IN_A_WORD, inputs // 2), dtype=torch.uint8)
    step = max(1, CHUNK // (inputs * IN_A_WORD))
    for start in range(0, words, step):
        values = unpack_words(stored[:, start : start + step], BITS, PLACES)
        first = start * IN_A_WORD
        held[first : first + values.shape[1]] = to_nibbles(values.T)
    return held


def _gemv_width(count: int, group_size: int) -> int:
    """Return the words of a row's zero points: enough for its groups, in multiples that AWQ's kernel reads at once."""
    words = -(-count // IN_A_WORD)
    multiple = max(1, 128 // group_size)
    return -(-words // multiple) * multiple
