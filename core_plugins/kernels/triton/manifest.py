"""Manifest of the `triton` kernels. Torch-free.

Owns: what the kernels claim to support before they are loaded. Called by: `core.plugin`.
"""

from __future__ import annotations

import importlib.metadata
from importlib.util import find_spec
from typing import Annotated, Final

import msgspec

from core.api.reason import Reason
from core.api.specs import KernelQuery
from core.plugin.contracts import Kernels
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

CONTRACT = 1
VERSION = 2  # grows when a kernel's results change
DEVICES: Final = ("cuda", "rocm", "xpu")
ACTIVATIONS: Final = ("none", "bf16", "int8", "int8_row")
OPERATIONS: Final = frozenset(
    {
        "linear",
        "grouped_experts",
        "heads",
        "route",
        "rms_norm",
        "rms_norm_heads",
        "layer_norm",
        "layer_norm_heads",
        "rotary",
        "gated",
        "activate",
        "add",
        "add_rms_norm",
        "open_gate",
        "scale",
        "soft_cap",
        "take_rows",
        "race",
        "logprobs",
    }
)
FORMATS: Final = (
    *("float32", "float16", "bfloat16", "int4_groups", "int8_groups", "int8_channel"),
    *("fp8_e4m3", "fp8_e5m2", "nf4", "fp4", "mxfp4", "nvfp4"),
    *("int2_super", "int3_super", "int4_super", "int5_super", "int6_super"),
    *("iq4_super", "iq3_s_super", "iq3_super", "iq2_super", "iq1_super"),
)


class KernelArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The provider's own arguments."""

    tiles: Annotated[
        str | None,
        msgspec.Meta(
            description="a file with lines of tiles of products, as `core kernels tune` prints them, before those that come "
            "with the kernels"
        ),
    ] = None


@hookimpl
def core_spec() -> PluginSpec:
    """Say what the plugin is."""
    return PluginSpec(
        name="triton",
        summary="kernels for GPUs in Triton: packed linear layers, experts, norms, rotary, gates, sampling",
        capabilities={
            "devices": list(DEVICES),
            "formats": list(FORMATS),
            "batch_invariant": True,
            "ahead": "core_plugins.kernels.triton.ahead:build",
            "tune": "core_plugins.kernels.triton.tune:tune",
        },
        arguments=KernelArguments,
        priority=100,
    )


@hookimpl
def core_supports(query: KernelQuery) -> list[Reason]:
    """Triton must be installed, the device one of a GPU's platform, and the operation known."""
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
    """The version of the arithmetic, and of the compiler."""
    return f"triton-{VERSION}:{importlib.metadata.version('triton')}"


@hookimpl
def core_load(context: LoadContext) -> Kernels:
    """Build the kernels. Raises UserError for a table of tiles that cannot be read."""
    from core_plugins.kernels.triton.kernels import TritonKernels
    from core_plugins.kernels.triton.product_tiles import tiles_with

    own = context.arguments or KernelArguments()
    return TritonKernels(tiles_with(own.tiles))
