"""Arguments of the GPU platforms, as `--platform-config.KEY`. Torch-free. Owns: declarations only."""

from __future__ import annotations

from typing import Annotated

import msgspec

from core_runtime.specs.graph_sizes import LARGEST

MOST_GRAPH_MIB = 512
"""MiB that the memory plan reserves for recorded graphs."""


class DeviceArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The platform's own arguments."""

    graph_mib: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=MOST_GRAPH_MIB)],
        msgspec.Meta(description="MiB that recorded graphs may take; sizes beyond are computed call by call"),
    ] = MOST_GRAPH_MIB
    largest_graph: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=1 << 16)],
        msgspec.Meta(description="most rows of a recorded step; larger ones are computed call by call"),
    ] = LARGEST
    virtual_memory: Annotated[
        bool,
        msgspec.Meta(
            description="the KV cache lies in the driver's virtual memory, which can be given up and taken again at the "
            "same addresses"
        ),
    ] = True
