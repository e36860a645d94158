"""What one of several ranks holds of each tensor.

Owns: the rows, inputs and items of a part of the model, and whether its partial sums have the bits of the whole.
Never does: pack a weight, decide how a model is divided (`core_runtime.specs` does).
Called by: the packing, and the building of what is no matrix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from core.api.errors import UserError
from core.api.specs import Activation, LayerSpec, RowOrder
from core_runtime.models.tensors.row_order import row_order
from core_runtime.specs.model_part import Part
from core_runtime.weights.formats import FP8, CanonicalWeight, Codebook, Int8Channel
from core_runtime.weights.prepared_inputs import PreparedInputs

SEGMENTS: Final = 8
"""Segments of the inputs of a layer that ranks may divide. Each segment has a sum of its own, independent of the number
of ranks.
"""


class RankShare:
    """One rank's share of a model.

    part: the rank's part.
    whole: matrices of the whole model, by name.
    """

    def __init__(self, part: Part, whole: Mapping[str, LayerSpec]) -> None:
        self.part = part
        self.whole = whole

    def sums(self, part: LayerSpec) -> bool:
        """Whether ranks hold different inputs of the layer, and so compute partial sums."""
        return part.shape[1] < self.whole[part.name].shape[1]

    def segments(self, part: LayerSpec) -> int:
        """Return the rank's share of a layer's segments, so that the order of a sum is that of the whole."""
        if not part.summed:
            return 1
        return max(SEGMENTS * part.shape[1] // self.whole[part.name].shape[1], 1)

    def is_tree(self, weight: CanonicalWeight, activation: Activation) -> bool:
        """Whether segments of a divided layer are subtrees of the sum of a rank that has all inputs."""
        weight = weight.weight if isinstance(weight, PreparedInputs) else weight
        inputs = weight.shape[1]
        # A scale of all inputs of a row, or of a whole row of the weight, is that of this rank's inputs alone.
        by_row = activation in ("int8_row", "fp8_row") or isinstance(weight, Int8Channel)
        by_row |= isinstance(weight, FP8) and weight.group_size == inputs
        by_row |= isinstance(weight, Codebook) and weight.row_scale is not None
        return not by_row and self.part.size in (2, 4, SEGMENTS) and inputs % 2 == 0

    def columns(self, part: LayerSpec) -> slice | None:
        """Return the inputs that this rank holds; None: all."""
        count = self.whole[part.name].shape[1]
        return None if part.shape[1] == count else self.part.slice_of(count, part.shape[1])

    def rows(self, part: LayerSpec) -> Tensor:
        """Return the rows of the whole part that this rank holds, int64: its share of each section."""
        whole = self.whole[part.name]
        if part.role in ("embedding", "head") and part.shape != whole.shape:
            return torch.arange(whole.shape[0])[self.part.vocabulary(whole.shape[0])]
        return self._held(whole.sections or whole.shape[:1], part.sections or part.shape[:1])

    def rows_in_file(self, part: LayerSpec, order: Sequence[RowOrder]) -> Tensor | None:
        """Return the rows of the checkpoint's matrix that this rank holds, int64 in the engine's order; None: all as
        they lie.
        """
        count = self.whole[part.name].shape[0]
        ordered = row_order(order, count) if order else None
        if part.shape[0] == count:
            return ordered
        held = self.rows(part)
        return held if ordered is None else ordered[held]

    def cut(
        self, tensor: Tensor, shape: Sequence[int], whole: Sequence[int] = (), sections: Sequence[int] = ()
    ) -> Tensor:
        """Return this rank's `shape` of a tensor that is no matrix, such as a norm of each head.

        whole, sections: sections of the first axis, of the whole tensor and of this rank's.
        """
        for axis, (size, mine) in enumerate(zip(tensor.shape, shape, strict=True)):
            if mine < size:
                lengths = (whole, sections) if whole and axis == 0 else ((size,), (mine,))
                tensor = tensor.index_select(axis, self._held(*lengths))
        return tensor

    def cut_weight(self, weight: CanonicalWeight, part: LayerSpec) -> CanonicalWeight:
        """Return the rows and inputs of a packed weight that this rank holds. Raises UserError."""
        columns = self.columns(part)
        if part.shape[0] < weight.shape[0]:
            weight = weight.rows(self.rows(part))  # indices, not a slice: a copy, so the rest can be freed
        if columns is None:
            return weight
        if not hasattr(weight, "columns"):
            raise self.refusal(part, f"weights of format '{weight.name}' have no `columns`")
        try:
            return weight.columns(columns)
        except (ValueError, NotImplementedError) as error:
            raise self.refusal(part, error) from error

    def refusal(self, part: LayerSpec, why: object) -> UserError:
        """Return the error for a part that cannot be divided."""
        return UserError(f"{part.name} cannot be divided into {self.part.size} parts: {why}")

    def _held(self, whole: Sequence[int], mine: Sequence[int]) -> Tensor:
        """Return the places that this rank holds among sections of `whole` lengths, int64: `mine` of each."""
        pieces = []
        first = 0
        for size, share in zip(whole, mine, strict=True):
            pieces.append(torch.arange(first, first + size)[self.part.slice_of(size, share)])
            first += size
        return torch.cat(pieces)
