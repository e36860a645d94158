"""The arguments of the executor `mp`. Torch-free.

Owns: `RanksArguments`. Called by: its manifest, the executor. The configuration sets them from `--tensor-parallel-size` and the
like.
"""

from __future__ import annotations

from typing import Annotated

import msgspec


class RanksArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The executor's own arguments."""

    ranks: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=64)],
        msgspec.Meta(description="processes that hold a part of every layer; --tensor-parallel-size sets it"),
    ] = 1
    stages: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=64)],
        msgspec.Meta(description="parts of the model's layers, one after the other; --pipeline-parallel-size sets it"),
    ] = 1
    timeout_seconds: Annotated[
        Annotated[float, msgspec.Meta(gt=0)],
        msgspec.Meta(description="how long a rank may be silent in a step before the engine ends"),
    ] = 30.0
    communicator: Annotated[
        str,
        msgspec.Meta(
            description="how ranks add their sums: native (shared memory), or gloo", pattern="^(native|gloo)$"
        ),
    ] = "native"
