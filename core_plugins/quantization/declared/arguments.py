"""The arguments of all methods for declared checkpoints. Torch-free.

Called by: their manifests.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from core.api.specs import Activation


class DeclaredArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a user may choose."""

    activation: Annotated[
        Literal["auto", "none", "bf16", "int8", "int8_row"],
        msgspec.Meta(
            description="Precision to which inputs of packed layers are rounded; auto: int8 for integer weights, bf16 for "
            "floats, none when the dtype is float32."
        ),
    ] = "auto"


def activation_for(asked: str, offered: tuple[Activation, ...], dtype: str) -> Activation | None:
    """The precision of one format's inputs; None where the format does not have the one that is asked for.

    asked: the argument. offered: all that the format has, its own choice first. dtype: of the run.
    """
    if asked == "auto":
        return offered[0] if dtype == "bfloat16" else "none"
    for one in offered:
        if one == asked:
            return one
    return None
