"""Arguments about weights that live in host memory. Owns: declarations only. Called by: schema."""

from typing import Annotated

import msgspec

from core.args.arg import Arg

_OFFLOAD = "all weights stay on the device"


class OffloadArgs(msgspec.Struct, frozen=True, kw_only=True):
    """Offloading of weights."""

    offload_backend: Annotated[
        str,
        Arg(
            "How offloaded weights are reached: read in place (uva) or fetched ahead (prefetch); auto follows the "
            "other arguments.",
            choices=("auto", "uva", "prefetch"),
            unserved=_OFFLOAD,
        ),
    ] = "auto"
    cpu_offload_gb: Annotated[
        float, Arg("GiB of each device's weights that stay in host memory.", ge=0, unserved=_OFFLOAD)
    ] = 0.0
    cpu_offload_params: Annotated[
        list[str] | None,
        Arg("Offload only weights whose dotted name has one of these parts.", commas=True, unserved=_OFFLOAD),
    ] = None
    offload_group_size: Annotated[
        int, Arg("Layers in a group, of which the last ones are offloaded; 0: none.", ge=0, unserved=_OFFLOAD)
    ] = 0
    offload_num_in_group: Annotated[
        int, Arg("Offloaded layers of each group; at most the group's size.", ge=1, unserved=_OFFLOAD)
    ] = 1
    offload_params: Annotated[
        list[str] | None,
        Arg("Fetched ahead: only weights whose dotted name has one of these parts.", commas=True, unserved=_OFFLOAD),
    ] = None
    offload_prefetch_step: Annotated[
        int, Arg("How many layers ahead weights are fetched.", ge=0, unserved=_OFFLOAD)
    ] = 1
