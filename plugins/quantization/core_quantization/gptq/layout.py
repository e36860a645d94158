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

from core.api.specs import PartPlan, Unsupported
from core_quantization.declared.part import StoredPart
from core_quantization.declared.part_format import Integers, Run, planned
from core_quantization.declared.stored import FLOATS, Wanted

if TYPE_CHECKING:
    from torch import Tensor

    from core_runtime.weights.formats import CanonicalWeight

WORD: Final = 32


@dataclass(frozen=True, slots=True)
class GPTQLayout:
    """The layout of GPTQ, of the kind `Layout`.

    run: settings of all packed layers.
    bits: bits of an integer: 2, 3, 4 or 8.
    group_size: inputs that share a scale; -1: all.
    sym: whether every zero point is the middle of the range.
    desc_act: whether groups may consist of inputs that are not adjacent.
    minus_one: whether zero points are stored minus one.
    """

    run: Run
    bits: int
    group_size: int
    sym: bool
    desc_act: bool
    minus_one: bool

    def plan(self, part: StoredPart) -> PartPlan | Unsupported:
        """Plan the part from names and shapes, see `Layout`."""
        rows, inputs = part.shape
        for what, count in (("inputs", inputs), ("outputs", rows)):
            if count * self.bits % WORD:
                return Unsupported(f"{count} {what} of {self.bits} bits do not fill words of 32 bits")
        if self.group_size > inputs or inputs % self.group_size:
            return Unsupported(f"its {inputs} inputs are not a multiple of {self.group_size}, its group size")
        count = 1 if self.group_size == -1 else inputs // self.group_size
        wanted = [
            Wanted("qweight", ("I32",), [(inputs * self.bits // WORD, rows)]),
            Wanted("qzeros", ("I32",), [(count, rows * self.bits // WORD)]),
            Wanted("scales", FLOATS, [(count, rows)]),
        ]
        if "g_idx" in part.tensors or self.desc_act:
            wanted.append(Wanted("g_idx", ("I32", "I64"), [(inputs,)]))
        return planned(part, wanted, self._how, self.run)

    def pack(self, part: StoredPart, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """Return the part as a canonical weight, see `Layout`."""
        from core_quantization.declared.bits import held_from_words
        from core_quantization.declared.canonical import integer_weight

        how = self._how(part)
        zeros = self._zeros(part, tensors["qzeros"])
        words = tensors["qweight"].T.contiguous()
        values = held_from_words(words, self.bits, part.shape[1])
        groups = None if self.group_size == -1 else tensors.get("g_idx")
        if groups is not None and not how.ordered:
            _check_in_order(groups, how.group_size)
        return integer_weight(how, values, tensors["scales"].T, zeros, groups)

    def _how(self, part: StoredPart) -> Integers:
        whole_row = self.group_size == -1
        return Integers(
            bits=self.bits,
            group_size=part.shape[1] if whole_row else self.group_size,
            zeros=not self.sym,
            channel=whole_row,
            ordered=self.desc_act and not whole_row,  # one group has all inputs, in any order
            scale=part.tensors["scales"].dtype,
        )

    def _zeros(self, part: StoredPart, words: Tensor) -> Tensor:
        """Return the zero points, uint8 [N, groups]. Raises ValueError when a checkpoint that is declared symmetric has
        others.
        """
        from core_quantization.declared.bits import unpack_stream

        crosses_words = WORD % self.bits != 0
        if self.minus_one and not crosses_words:
            # Packers subtract one from each whole word, so that a zero point of 0 borrows from its neighbour.
            words = words + sum(1 << place for place in range(0, WORD, self.bits))
        zeros = unpack_stream(words, self.bits, part.shape[0])
        if self.minus_one and crosses_words:
            zeros = (zeros + 1) % (1 << self.bits)
        middle = 1 << (self.bits - 1)
        if self.sym and not bool((zeros == middle).all()):
            found = int(zeros[zeros != middle][0])
            raise ValueError(
                f"is declared symmetric ('sym'), but has a zero point of {found} where {middle} is the middle; to take them as "
                "they are: --hf-overrides.quantization_config.sym false"
            )
        return zeros.T


def _check_in_order(groups: Tensor, group_size: int) -> None:
    """Raise ValueError for groups that contradict the declaration."""
    import torch

    if not torch.equal(groups.long(), torch.arange(len(groups)) // group_size):
        raise ValueError(
            "has a g_idx that mixes groups, though 'desc_act' of the declaration is false; if the file is right: "
            "--hf-overrides.quantization_config.desc_act true"
        )
