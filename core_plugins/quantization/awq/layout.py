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

from core.api.specs import Activation, PartPlan, Unsupported
from core_plugins.quantization.declared.groups import SCALE_BYTES, Groups
from core_plugins.quantization.declared.part import Expected, StoredPart

if TYPE_CHECKING:
    from torch import Tensor

    from core.weights.formats import CanonicalWeight

BITS: Final = 4
IN_A_WORD: Final = 8
PLACES: Final = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where the integer of each of eight outputs lies in its word."""
MIDDLE: Final = 8
TENSORS: Final = ("qweight", "qzeros", "scales")


@dataclass(frozen=True, slots=True)
class AWQLayout:
    """Kind `Layout`.

    group_size: inputs that share a scale; -1: all.
    version: which of the two.
    activation: precision to which inputs are rounded.
    """

    group_size: int
    version: Literal["gemm", "gemv"]
    activation: Activation

    def groups(self, part: StoredPart) -> Groups:
        """How the integers are held."""
        zero = None if "qzeros" in part.tensors else MIDDLE
        return Groups(BITS, self.group_size, zero, self.activation)

    def plan(self, part: StoredPart) -> PartPlan | Unsupported:
        """Integers in groups; the sizes of all tensors are those that the declaration says."""
        groups = self.groups(part)
        rows, inputs = part.shape
        for what, count in (("inputs", inputs), ("outputs", rows)):
            if count % IN_A_WORD:
                return Unsupported(f"{count} {what} of 4 bits do not fill words of 32 bits")
        problem = groups.problem(part) or part.mismatch(self._expected(part))
        if problem is not None:
            return Unsupported(problem)
        return groups.plan(part, part.names(*TENSORS), part.tensors["scales"].dtype)

    def pack(self, part: StoredPart, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """Groups of integers."""
        from core_plugins.quantization.declared.bits import unpack_words

        groups = self.groups(part)
        words = tensors["qweight"]
        zero_words = tensors.get("qzeros")
        count = groups.count(part)
        scales = tensors["scales"]
        zeros = None
        if self.version == "gemv":
            values = groups.held_values(part, lambda rows: unpack_words(words[rows], BITS))
            if zero_words is not None:
                zeros = unpack_words(zero_words, BITS)[:, :count]
            return groups.weight(part, values, scales[:, :count], zeros)

        def unpack(rows: slice) -> Tensor:
            own_words = words[:, rows.start // IN_A_WORD : rows.stop // IN_A_WORD]
            return unpack_words(own_words, BITS, PLACES).t()

        values = groups.held_values(part, unpack, IN_A_WORD)
        if zero_words is not None:
            zeros = unpack_words(zero_words, BITS, PLACES).t()
        return groups.weight(part, values, scales.t(), zeros)

    def _expected(self, part: StoredPart) -> dict[str, Expected]:
        rows, inputs = part.shape
        groups = self.groups(part)
        count = groups.count(part)
        types = tuple(SCALE_BYTES)
        if self.version == "gemm":
            expected = {
                "qweight": Expected(("I32",), (inputs, rows // IN_A_WORD)),
                "qzeros": Expected(("I32",), (count, rows // IN_A_WORD)),
                "scales": Expected(types, (count, rows)),
            }
        else:
            width = _gemv_width(count, groups.inputs(part))
            expected = {
                "qweight": Expected(("I32",), (rows, inputs // IN_A_WORD)),
                "qzeros": Expected(("I32",), (rows, width)),
                "scales": Expected(types, (rows, width * IN_A_WORD)),
            }
        if groups.zero is not None:
            del expected["qzeros"]
        return expected


def _gemv_width(count: int, group_size: int) -> int:
    """Words of the zero points of a row: enough for its groups, in multiples that its kernel reads at once."""
    words = -(-count // IN_A_WORD)
    multiple = max(1, 128 // group_size)
    return -(-words // multiple) * multiple
