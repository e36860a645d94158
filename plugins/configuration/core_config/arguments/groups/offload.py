"""Arguments about weights that lie in host memory. Owns: declarations only. Called by: schema."""

from typing import Annotated, ClassVar

import msgspec

from core.args.arg import Arg, ArgumentGroup


class OffloadArgs(ArgumentGroup, frozen=True, kw_only=True):
    """Weights in host memory."""

    place: ClassVar[int] = 35

    offload_backend: Annotated[
        str,
        Arg(
            "How a GPU comes to weights in host memory. prefetch: they are copied into slots on the device ahead of their "
            "block; see --offload-group-size. uva: kernels read them where they lie; see --cpu-offload-gb. auto: whichever "
            "of these two arguments is given.",
            choices=("auto", "prefetch", "uva"),
            since="0.2.0",
        ),
    ] = "auto"
    cpu_offload_gb: Annotated[
        float,
        Arg(
            "uva: GiB of matrices of blocks that lie in host memory, from the first block on. 0: none.",
            ge=0,
            le=1e9,
            since="0.2.0",
        ),
    ] = 0.0
    cpu_offload_params: Annotated[
        list[str],
        Arg(
            "uva: only matrices whose dotted name has one of these whole segments, such as experts or down_proj. Unset: all.",
            commas=True,
            since="0.2.0",
        ),
    ] = msgspec.field(default_factory=list)
    offload_group_size: Annotated[
        int,
        Arg(
            "prefetch: blocks of a group; the last ones of each group lie in host memory. 0: none.",
            ge=0,
            le=1 << 16,
            since="0.2.0",
        ),
    ] = 0
    offload_num_in_group: Annotated[
        int, Arg("prefetch: blocks of each group that lie in host memory.", ge=1, le=1 << 16, since="0.2.0")
    ] = 1
    offload_prefetch_step: Annotated[
        int,
        Arg(
            "prefetch: blocks that are copied ahead while one computes; each takes the room of a block on the device. 0: a "
            "block is copied when it is needed.",
            ge=0,
            le=1 << 10,
            since="0.2.0",
        ),
    ] = 1
    offload_params: Annotated[
        list[str],
        Arg(
            "prefetch: only matrices whose dotted name has one of these whole segments. Unset: all.",
            commas=True,
            since="0.2.0",
        ),
    ] = msgspec.field(default_factory=list)
