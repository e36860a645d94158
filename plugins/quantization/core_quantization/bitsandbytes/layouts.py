"""The layouts of bitsandbytes.

Never does: read a declaration. Called by: the method.

nf4 and fp4, a matrix as one run of codes, rows in order:
    weight: uint8 [N * K / 2, 1]; the high nibble is the even input.
    weight.absmax: float32, a scale for each block of the run; or uint8, codes of such scales, with
    weight.nested_absmax: float32, a scale for each block of those, and weight.nested_quant_map: float32 [256], their codes.
    weight.quant_map: float32 [16], the codes' numbers.
    weight.quant_state.bitsandbytes__nf4 (or fp4): JSON as bytes: shape, sizes of blocks, and what is added to nested scales.
8-bit integers:
    weight: int8 [N, K]; SCB: float32 [N], the largest magnitude of each row; weight_format: uint8, the order of its tiles.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from core.api.specs import PartPlan, Unsupported
from core_quantization.declared.part import StoredPart
from core_quantization.declared.part_format import GROUP_MULTIPLE, Integers, Run, planned
from core_quantization.declared.stored import Wanted, problem

if TYPE_CHECKING:
    from torch import Tensor

    from core_runtime.weights.formats import CanonicalWeight

STATE: Final = "weight.quant_state.bitsandbytes__"
KINDS: Final = ("nf4", "fp4")
BLOCKS: Final = (64, 128, 256, 512, 1024, 2048, 4096, 32)
"""Block sizes that the tool supports, the usual one first."""
NESTED_BLOCK: Final = 256
SCALE_BYTES: Final = 4
LARGEST: Final = 127


@dataclass(frozen=True, slots=True)
class FourBits:
    """The layout of 4-bit codes, of the kind `Layout`.

    run: settings of all packed layers.
    kind: `nf4` or `fp4`.
    """

    run: Run
    kind: str

    def plan(self, part: StoredPart) -> PartPlan | Unsupported:
        """Plan the part from names and shapes, see `Layout`. Blocks that cross rows are cut into smaller ones of the
        same scale.
        """
        rows, inputs = part.shape
        size = _block_size(part)
        if size is None:
            return Unsupported(f"no size of blocks gives as many scales as '{part.own_name}.weight.absmax' has")
        held = math.gcd(size, inputs)
        if held % GROUP_MULTIPLE:
            return Unsupported(
                f"blocks of {size} and rows of {inputs} inputs have only {held} inputs in common; {GROUP_MULTIPLE} are needed. "
                "Leave such modules plain (llm_int8_skip_modules) when the checkpoint is made"
            )
        wanted = self._wanted(part, size)
        wrong = problem(part, wanted)
        if wrong is not None:
            return Unsupported(wrong)
        reads = tuple(tensor.suffix for tensor in wanted)
        nbytes = rows * (inputs // 2 + inputs // held * SCALE_BYTES)
        return self.run.plan(part, reads, self.kind, str(held), nbytes, held)

    def pack(self, part: StoredPart, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """Return the part as a canonical weight, see `Layout`."""
        import torch

        from core_runtime.weights.codebook import CODES
        from core_runtime.weights.formats import Codebook

        rows, inputs = part.shape
        size = _block_size(part)
        assert size is not None, "a part without a size is not planned"
        state = self._state(part, tensors[STATE + self.kind], size)
        codes = torch.tensor(CODES[self.kind])
        if not torch.equal(tensors["weight.quant_map"], codes):
            raise ValueError(f"has a quant_map that is not the table of {self.kind}; the file is damaged")
        pairs = tensors["weight"].view(rows, inputs // 2)
        swapped = (pairs >> 4) | (pairs << 4)
        held = math.gcd(size, inputs)
        scale = _scales(tensors, state).repeat_interleave(size // held)
        by_row = scale[: rows * inputs // held].view(rows, inputs // held)
        return Codebook(self.kind, held, swapped, by_row.contiguous())

    def _wanted(self, part: StoredPart, size: int) -> list[Wanted]:
        rows, inputs = part.shape
        count = -(-rows * inputs // size)
        state = STATE + self.kind
        wanted = [
            Wanted("weight", ("U8",), [(rows * inputs // 2, 1), (rows * inputs // 2,)]),
            Wanted("weight.absmax", ("F32", "U8"), [(count,)]),
            Wanted("weight.quant_map", ("F32",), [(len(KINDS) * 8,)]),
            Wanted(state, ("U8",), [part.tensors[state].shape]),
        ]
        if part.tensors["weight.absmax"].dtype == "U8":
            wanted.append(Wanted("weight.nested_absmax", ("F32",), [(-(-count // NESTED_BLOCK),)]))
            wanted.append(Wanted("weight.nested_quant_map", ("F32",), [(256,)]))
        return wanted

    def _state(self, part: StoredPart, tensor: Tensor, size: int) -> dict[str, Any]:
        """Return the JSON of the quant_state. Raises ValueError when it contradicts the tensors."""
        try:
            found = json.loads(bytes(tensor.tolist()))
        except ValueError as error:
            raise ValueError(f"has a quant_state that is not valid JSON ({error}); the file is damaged") from None
        expected = {"quant_type": self.kind, "shape": list(part.shape), "blocksize": size}
        if part.tensors["weight.absmax"].dtype == "U8":
            expected["nested_blocksize"] = NESTED_BLOCK
        for key, wanted in expected.items():
            told = found.get(key) if isinstance(found, dict) else None
            if told != wanted:
                raise ValueError(f"has a quant_state whose {key} is {told!r}; its tensors say {wanted!r}")
        assert isinstance(found, dict)
        return found


@dataclass(frozen=True, slots=True)
class EightBits:
    """The layout of rows of 8-bit integers, of the kind `Layout`. run: settings of all packed layers."""

    run: Run

    def plan(self, part: StoredPart) -> PartPlan | Unsupported:
        """Plan the part from names and shapes, see `Layout`."""
        rows = part.shape[0]
        wanted = [Wanted("weight", ("I8",), [part.shape]), Wanted("SCB", ("F32",), [(rows,), (rows, 1)])]
        if "weight_format" in part.tensors:
            wanted.append(Wanted("weight_format", ("U8",), [(), (1,)]))
        return planned(part, wanted, self._how, self.run)

    def pack(self, part: StoredPart, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """Return the part as a canonical weight, see `Layout`."""
        from core_runtime.weights.formats import Int8Channel

        form = tensors.get("weight_format")
        if form is not None and int(form) != 0:
            raise ValueError(
                f"lies in tiles of one kind of GPU (weight_format {int(form)}); save the checkpoint again with rows "
                "(bitsandbytes 0.43 or later)"
            )
        scale = tensors["SCB"].reshape(-1, 1) / LARGEST
        return Int8Channel(tensors["weight"].clone(), scale)

    def _how(self, part: StoredPart) -> Integers:
        return Integers(8, part.shape[1], zeros=False, channel=True, ordered=False, scale="F32")


def _block_size(part: StoredPart) -> int | None:
    """Return the codes that share a scale, from the number of scales; None: no size fits."""
    info = part.tensors.get("weight.absmax")
    rows, inputs = part.shape
    for size in BLOCKS:
        if info is None or info.shape == (-(-rows * inputs // size),):
            return size
    return None


def _scales(tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> Tensor:
    """Return the scales, float32, one for each block. Raises ValueError when nested scales lack their offset."""
    stored = tensors["weight.absmax"]
    nested = tensors.get("weight.nested_absmax")
    if nested is None:
        return stored
    offset = state.get("nested_offset")
    if not isinstance(offset, int | float):
        raise ValueError("has a quant_state without nested_offset, which its nested scales need; the file is damaged")
    codes = tensors["weight.nested_quant_map"][stored.long()]
    by_block = nested.repeat_interleave(NESTED_BLOCK)[: len(codes)]
    return codes * by_block + offset
