"""The layout of GPTQ: words of 32 bits along the inputs, zero points in words along the outputs.

Owns: these words. Never does: read a declaration. Called by: the method, for GPTQ and AutoRound.

qweight: int32 [K * bits / 32, N], the integers of an output one after another; those of 3 bits cross words.
qzeros: int32 [groups, N * bits / 32], zero points, in one of the formats minus one.
scales: float16, bfloat16 or float32 [groups, N].
g_idx: int32 [K], the group of each input; optional.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from core.api.specs import Activation, PartPlan, Unsupported
from core_plugins.quantization.declared.groups import SCALE_BYTES, Groups
from core_plugins.quantization.declared.part import Expected, StoredPart

if TYPE_CHECKING:
    from torch import Tensor

    from core.weights.formats import CanonicalWeight

WORD: Final = 32
TENSORS: Final = ("qweight", "qzeros", "scales", "g_idx")


@dataclass(frozen=True, slots=True)
class GPTQLayout:
    """Kind `Layout`.

    bits: of an integer: 2, 3, 4 or 8.
    group_size: inputs that share a scale; -1: all.
    sym: whether every zero point is the middle of the range.
    desc_act: whether groups may be made of inputs that do not lie together.
    minus_one: whether zero points are stored minus one.
    activation: precision to which inputs are rounded.
    """

    bits: int
    group_size: int
    sym: bool
    desc_act: bool
    minus_one: bool
    activation: Activation

    @property
    def groups(self) -> Groups:
        """How the integers are held."""
        zero = self._middle if self.sym else None
        # One group has all inputs, in whatever order.
        ordered = self.desc_act and self.group_size != -1
        return Groups(self.bits, self.group_size, zero, self.activation, ordered)

    def plan(self, part: StoredPart) -> PartPlan | Unsupported:
        """Integers in groups; the sizes of all tensors are those that the declaration says."""
        groups = self.groups
        rows, inputs = part.shape
        for what, count in (("inputs", inputs), ("outputs", rows)):
            if count * self.bits % WORD:
                return Unsupported(f"{count} {what} of {self.bits} bits do not fill words of 32 bits")
        problem = groups.problem(part)
        if problem is not None:
            return Unsupported(problem)
        count = groups.count(part)
        expected = {
            "qweight": Expected(("I32",), (inputs * self.bits // WORD, rows)),
            "qzeros": Expected(("I32",), (count, rows * self.bits // WORD)),
            "scales": Expected(tuple(SCALE_BYTES), (count, rows)),
        }
        if "g_idx" in part.tensors or self.desc_act:
            expected["g_idx"] = Expected(("I32", "I64"), (inputs,))
        problem = part.mismatch(expected)
        if problem is not None:
            return Unsupported(problem)
        return groups.plan(part, part.names(*TENSORS), part.tensors["scales"].dtype)

    def pack(self, part: StoredPart, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """Groups of integers; columns of act-order lie group by group. Raises ValueError when values contradict."""
        from core_plugins.quantization.declared.bits import unpack_run

        groups = self.groups
        inputs = part.shape[1]
        zeros = self._zeros(part, tensors["qzeros"])
        order = self._order(part, tensors.get("g_idx"))
        words = tensors["qweight"]

        def unpack(rows: slice) -> Tensor:
            values = unpack_run(words[:, rows].t().contiguous(), self.bits, inputs)
            return values if order is None else values[:, order]

        values = groups.held_values(part, unpack)
        return groups.weight(part, values, tensors["scales"].t(), None if self.sym else zeros, order)

    @property
    def _middle(self) -> int:
        return 1 << (self.bits - 1)

    def _zeros(self, part: StoredPart, words: Tensor) -> Tensor:
        """uint8 [N, groups]. Raises ValueError when they are not those of a symmetric checkpoint that is said to be one."""
        from core_plugins.quantization.declared.bits import unpack_run

        crosses_words = WORD % self.bits != 0
        if self.minus_one and not crosses_words:
            # Packers take one off each whole word, so that a zero point of 0 borrows from its neighbour.
            words = words + sum(1 << place for place in range(0, WORD, self.bits))
        zeros = unpack_run(words, self.bits, part.shape[0])
        if self.minus_one and crosses_words:
            zeros = (zeros + 1) % (1 << self.bits)
        if self.sym and not bool((zeros == self._middle).all()):
            found = int(zeros[zeros != self._middle][0])
            raise ValueError(
                f"is declared symmetric ('sym'), but has a zero point of {found} where {self._middle} is the middle; with "
                "--hf-overrides.quantization_config.sym false they count as they are"
            )
        return zeros.t()

    def _order(self, part: StoredPart, found: Tensor | None) -> Tensor | None:
        """int64 [K], the input of each stored column; None: they lie in order. Raises ValueError for incomplete groups."""
        import torch

        inputs = part.shape[1]
        if found is None or self.group_size == -1:
            return None
        in_order = torch.arange(inputs) // self.group_size
        wanted = found.to(torch.int64)
        if torch.equal(wanted, in_order):
            return None
        if not self.desc_act:
            raise ValueError(
                "has a g_idx that mixes groups, though the declaration says 'desc_act' false; if the file is right: "
                "--hf-overrides.quantization_config.desc_act true"
            )
        order = wanted.argsort(stable=True)
        if not torch.equal(wanted[order], in_order):
            raise ValueError(
                f"has a g_idx that does not put {self.group_size} inputs in each group; the file is damaged"
            )
        return order
