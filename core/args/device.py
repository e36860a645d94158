"""Arguments about devices, backends and parallelism. Owns: declarations only. Called by: schema."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from core.args.arg import Arg


class DeviceArgs(msgspec.Struct, frozen=True, kw_only=True):
    """Devices, attention and parallelism."""

    device: Annotated[
        str, Arg("Platform to run on, such as cpu or cuda:0; auto takes the best that answers.", plugin="platform")
    ] = "auto"
    platform_config: Annotated[dict[str, Any], Arg("The platform's own arguments.")] = {}
    attention_backend: Annotated[
        str | None,
        Arg(
            "Attention backend of all layers, or one a layer kind: full=NAME,sliding=NAME. Unset: the platform decides.",
            plugin="attention",
        ),
    ] = None
    attention_config: Annotated[
        dict[str, Any], Arg("Attention backends' own arguments: --attention-config.NAME.KEY VALUE.", short=("ac",))
    ] = {}
    tensor_parallel_size: Annotated[
        int,
        Arg(
            "Number of tensor-parallel ranks.", short=("tp",), ge=1, served=(1,), unserved="the engine runs on one rank"
        ),
    ] = 1
    pipeline_parallel_size: Annotated[
        int, Arg("Number of pipeline stages.", short=("pp",), ge=1, served=(1,), unserved="the engine runs on one rank")
    ] = 1
    data_parallel_size: Annotated[
        int,
        Arg("Number of engine replicas.", short=("dp",), ge=1, served=(1,), unserved="one engine is started"),
    ] = 1
    distributed_executor_backend: Annotated[
        str | None,
        Arg(
            "How workers are started. Unset: in the engine's process.",
            choices=("uni", "mp", "ray", "external_launcher"),
            served=(None, "uni"),
            unserved="the worker runs in the engine's process",
        ),
    ] = None
