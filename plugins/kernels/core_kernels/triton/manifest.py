"""Manifest of the `triton` kernels. Torch-free.

Owns: the capabilities that the kernels declare before they are loaded. Called by: `core.plugin`.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

import msgspec

from core.api.reason import Reason
from core.api.specs import KernelQuery
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_kernels.triton.limits import DEVICES, FORMATS, OPERATIONS, numerics_name
from core_runtime.contracts import Kernels

CONTRACT = 1


class KernelArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The provider's own arguments."""

    tiles: Annotated[
        str | None,
        msgspec.Meta(
            description="a file with lines of tiles of products, as `core kernels tune` prints them, before those that come "
            "with the kernels"
        ),
    ] = None
    early_launches: Annotated[
        bool,
        msgspec.Meta(
            description="launch kernels while the previous ones still run, as NVIDIA's GPUs can from Hopper on "
            "(programmatic dependent launch)"
        ),
    ] = True
    warm_up: Annotated[
        bool,
        msgspec.Meta(
            description="compile what the model launches before the engine is ready, while weights are loaded; false: a kernel "
            "that was not compiled before stops all requests for seconds when it is first launched"
        ),
    ] = True


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin."""
    return PluginSpec(
        name="triton",
        summary="kernels for GPUs in Triton: packed linear layers, experts, norms, rotary, gates, sampling",
        capabilities={
            "devices": list(DEVICES),
            "formats": list(FORMATS),
            "batch_invariant": True,
            "ahead": "core_kernels.triton.compiling.ahead:build",
            "tune": "core_kernels.triton.compiling.tune:tune",
        },
        arguments=KernelArguments,
        priority=100,
    )


@hookimpl
def core_supports(query: KernelQuery) -> list[Reason]:
    """Require an installed Triton, a GPU platform, and a known operation."""
    reasons = []
    if find_spec("triton") is None:
        reasons.append(Reason("triton", "installed", "not installed; run pip install triton"))
    if query.device.partition(":")[0] not in DEVICES:
        reasons.append(Reason("device", f"a GPU: {', '.join(DEVICES)}", query.device))
    if query.op not in OPERATIONS:
        reasons.append(Reason("op", ", ".join(sorted(OPERATIONS)), query.op))
    return reasons


@hookimpl
def core_numerics() -> str:
    """Return the version of the arithmetic and of the compiler."""
    return numerics_name()


@hookimpl
def core_load(context: LoadContext) -> Kernels:
    """Build the kernels. Raises UserError for an unreadable table of tiles."""
    from core_kernels.triton.kernels import TritonKernels
    from core_kernels.triton.products.tiles import tiles_with

    own = context.arguments or KernelArguments()
    return TritonKernels(tiles_with(own.tiles), own.early_launches, warms_up=own.warm_up)
