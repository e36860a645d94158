"""Layouts of integers in tiles: Marlin's, those of sparse matrices, and QQQ's.

Owns: names and shapes of their tensors. Never does: know a place in a tile. Called by: the choice of layouts of `gptq` and
`compressed-tensors`.

Marlin: `B` int32 [K / 16, 2N], 4-bit integers around 8; `s` floats [groups, N].
Sparse: `B_24` int32 [K / 32, N * bits / 2], `s`, and the indices `B_meta` int16 [K / 32, 2N]; in compressed-tensors
        `weight_packed`, `scale_packed`, `meta`.
QQQ:    `B`; `s_channel` float32 [1, N], and with groups `s_group` float16 [groups, N]. Its kernel multiplies 8-bit integers:
        with groups round((B - 8) * s_group), else 16 times a signed 4-bit integer. The first are held as 8 bits, so that the
        products are the kernel's own.
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

TILE: Final = 16
OUTPUTS: Final = 64
WORD: Final = 32
UNREAD: Final = ("workspace", "reduce_buffer", "weight_shape")
"""Tensors that kernels of GPUs write to, and a shape that the model knows."""
NAMES: Final = ("B", "s", "")
SPARSE_NAMES: Final = ("B_24", "s", "B_meta")
COMPRESSED_NAMES: Final = ("weight_packed", "scale_packed", "meta")
"""Suffixes of integers, scales and indices."""
QQQ_ROWS: Final = 16
"""Factor of a 4-bit integer in products of 8-bit ones, where a scale belongs to a row."""


@dataclass(frozen=True, slots=True)
class Tiled:
    """A layout of integers in tiles, of the kind `Layout`.

    run: settings of all packed layers.
    bits: bits of an integer: 4, of sparse matrices also 8.
    group_size: inputs that share a scale; -1: all.
    kind: which of these layouts.
    names: suffixes of integers, scales and indices.
    """

    run: Run
    bits: int
    group_size: int
    kind: Literal["marlin", "sparse", "qqq"] = "marlin"
    names: tuple[str, str, str] = NAMES

    def plan(self, part: StoredPart) -> PartPlan | Unsupported:
        """Plan the part from names and shapes, see `Layout`."""
        rows, inputs = part.shape
        served = (4, 8) if self.kind == "sparse" else (4,)
        if self.bits not in served:
            return Unsupported(
                f"its tiles have integers of {' or '.join(map(str, served))} bits, but the declaration says {self.bits}"
            )
        deep = 2 * TILE if self.kind == "sparse" else TILE
        if rows % OUTPUTS or inputs % deep:
            return Unsupported(
                f"its {rows} outputs and {inputs} inputs do not fill tiles of {OUTPUTS} outputs and {deep} inputs"
            )
        if self.group_size != -1 and inputs % self.group_size:
            return Unsupported(f"its {inputs} inputs are not a multiple of {self.group_size}, its group size")
        values, scales, indices = self.names
        wanted = [Wanted(values, ("I32",), [(inputs // deep, rows * TILE * self.bits // WORD)])]
        groups = 1 if self._by_row(part) else inputs // self.group_size
        if self.kind == "qqq":
            wanted.append(Wanted("s_channel", FLOATS, [(1, rows)]))
            if not self._by_row(part):
                wanted.append(Wanted("s_group", FLOATS, [(groups, rows)]))
        else:
            wanted.append(Wanted(scales, FLOATS, [(groups, rows)]))
        if self.kind == "sparse":
            wanted.append(Wanted(indices, ("I16",), [(inputs // deep, 2 * rows)]))
        return planned(part, wanted, self._how, self.run, (*UNREAD, "s_group"))

    def pack(self, part: StoredPart, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """Return the part as a canonical weight, see `Layout`."""
        from core_quantization.declared.bits import to_nibbles, unpack_words
        from core_quantization.declared.canonical import integer_weight
        from core_quantization.tiles import places
        from core_quantization.tiles.sparse import whole

        rows, _ = part.shape
        by_row = self._by_row(part)
        values, scales, indices = self.names
        integers = unpack_words(tensors[values], self.bits)
        if self.kind == "qqq":
            order = places.QQQ_CHANNELS if by_row else places.QQQ_GROUPS
            return self._qqq(part, order.matrix(integers, rows).T.contiguous(), tensors)
        order = places.SPARSE[self.bits] if self.kind == "sparse" else places.MARLIN
        matrix = order.matrix(integers, rows).T.contiguous()
        scale = tensors[scales]
        if self.kind == "sparse":
            matrix = whole(matrix, tensors[indices], 1 << (self.bits - 1))
            scale = scale if by_row else places.in_order(scale, places.SPARSE_SCALES_OF_GROUPS)
        else:
            scale = places.in_order(scale, places.SCALES_OF_ROWS if by_row else places.SCALES_OF_GROUPS)
        held = to_nibbles(matrix) if self.bits == 4 else matrix
        return integer_weight(self._how(part), held, scale.T)

    def _qqq(self, part: StoredPart, matrix: Tensor, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """Return a matrix of QQQ. matrix: uint8 [N, K], as stored."""
        import torch

        from core_quantization.declared.bits import to_nibbles
        from core_quantization.declared.canonical import SIGN, integer_weight
        from core_quantization.tiles import places

        channel = places.in_order(tensors["s_channel"].float(), places.SCALES_OF_ROWS).T
        if self._by_row(part):
            return integer_weight(self._how(part), to_nibbles(matrix ^ 8), channel * QQQ_ROWS)
        group = places.in_order(tensors["s_group"].float(), places.SCALES_OF_GROUPS).T
        wide = (matrix.float() - 8) * group.repeat_interleave(self.group_size, dim=1)
        if not bool(wide.isfinite().all()):
            raise ValueError("has a scale in 's_group' that is not finite; the file is damaged")
        bytes_ = wide.round().clamp(-128, 127).to(torch.int8).view(torch.uint8) ^ SIGN
        return integer_weight(self._how(part), bytes_, channel)

    def _by_row(self, part: StoredPart) -> bool:
        """Whether a scale belongs to a whole row."""
        return self.group_size in (-1, part.shape[1])

    def _how(self, part: StoredPart) -> Integers:
        by_row = self._by_row(part)
        inputs = part.shape[1]
        if self.kind == "qqq":
            return Integers(4 if by_row else 8, inputs, zeros=False, channel=True, ordered=False, scale="F32")
        return Integers(
            bits=self.bits,
            group_size=inputs if by_row else self.group_size,
            zeros=False,
            channel=by_row,
            ordered=False,
            scale=part.tensors[self.names[1]].dtype,
        )
