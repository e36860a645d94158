"""The rows of rotary tables that media with three positions take.

Owns: whether a model has them. Never does: compute an angle. Called by: the model's instance, as the decoder is made.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from core.api.errors import UserError
from core_runtime.layers.rotary import SpareRows
from core_runtime.specs.decoder_spec import DecoderSpec


def spare_rows(spec: DecoderSpec, tables: Sequence[tuple[Tensor, Tensor] | None], first: int) -> SpareRows | None:
    """Return the rows from `first` on of the tables, for rows of media; None for models whose media have one position.

    Raises UserError for axes of another number of pairs than rotate.
    """
    axes = next((block.rope.axes for block in spec.blocks if block.rope is not None), ())
    if not axes:
        return None
    distinct = list({id(table): table for table in tables if table is not None}.values())
    pairs = distinct[0][0].shape[1]
    if len(axes) != pairs:
        raise UserError(
            f"mrope_section of the model's configuration has {len(axes)} pairs; expected {pairs}, those of a head that rotate. "
            "Start with --language-model-only, or correct the configuration."
        )
    return SpareRows(distinct, axes, first)
