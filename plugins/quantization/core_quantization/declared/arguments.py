"""The arguments of all methods for declared checkpoints. Torch-free.

Called by: their manifests.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Final, Literal

import msgspec

from core.api.specs import Activation

DECLARED: Final = "declared"
"""The value of `activation` for inputs that are rounded as the checkpoint declares."""


class DeclaredArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The user's arguments of a method."""

    activation: Annotated[
        Literal["auto", "none", "bf16", "int8", "int8_row", "fp8_row", "declared"],
        msgspec.Meta(
            description="Precision to which inputs of packed layers are rounded; auto: on a CPU int8 for integer weights and "
            "bf16 for floats, on a GPU int8_row where weights have one scale a row; none when the dtype is not bfloat16; "
            "fp8_row: 8-bit floats with a scale for a row, for e4m3 weights; declared: as the checkpoint declares."
        ),
    ] = "auto"


def activation_for(
    asked: str, offered: tuple[Activation, ...], dtype: str, roundings: Collection[str]
) -> Activation | None:
    """Return the precision of one format's inputs; None where the format does not have the requested one.

    asked: the argument.
    offered: all precisions of the format, its default first.
    dtype: dtype of the run.
    roundings: precisions that are faster on the device.
    """
    if asked == "auto":
        gainful = (one for one in offered if one in roundings and dtype == "bfloat16")
        return next(gainful, "none")
    for one in offered:
        if one == asked:
            return one
    return None
