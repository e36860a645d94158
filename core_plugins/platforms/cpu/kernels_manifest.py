"""Manifest of the `cpu_native` kernels. Torch-free.

Owns: what the kernels claim to support before they are loaded. Called by: `core.plugin`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.api.reason import Reason
from core.api.specs import KernelQuery
from core.plugin.contracts import Kernels
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_plugins.platforms.cpu.extension import kernels_or_reason, numerics

CONTRACT = 1
VERSION = 2  # grows when a kernel's results change
NUMERICS = f"cpu-native-{VERSION}-tree8"  # sums over inputs go by up to eight segments, added as a tree
OPERATIONS = frozenset(
    {
        "linear",
        "rms_norm",
        "rms_norm_heads",
        "rotary",
        "layer_norm",
        "layer_norm_heads",
        "gated",
        "activate",
        "add",
        "open_gate",
        "scale",
        "soft_cap",
        "take_rows",
        "race",
        "logprobs",
        "route",
        "experts",
    }
)

FORMATS = [
    *("float32", "float16", "bfloat16", "int4_groups", "int8_groups", "int8_channel"),
    *("fp8_e4m3", "fp8_e5m2", "nf4", "fp4", "mxfp4", "nvfp4"),
    *("int2_super", "int3_super", "int4_super", "int5_super", "int6_super"),
    *("iq4_super", "iq3_s_super", "iq3_super", "iq2_super", "iq1_super"),
]


@hookimpl
def core_spec() -> PluginSpec:
    """Say what the plugin is."""
    return PluginSpec(
        name="cpu_native",
        summary="compiled kernels: packed linear layers in a fixed order of summation, norms, rotary, gates, sampling",
        capabilities={
            "devices": ["cpu"],
            "formats": FORMATS,
            "batch_invariant": True,
            "row_multiple": 32,
        },
        priority=100,
    )


@hookimpl
def core_supports(query: KernelQuery) -> list[Reason]:
    """The extension must be compiled, and the operation known."""
    reasons = []
    if query.op not in OPERATIONS:
        reasons.append(Reason("op", ", ".join(sorted(OPERATIONS)), query.op))
    native = kernels_or_reason()
    return [*reasons, native] if isinstance(native, Reason) else reasons


@hookimpl
def core_numerics(platform: Mapping[str, Any]) -> str | None:
    """Version of the arithmetic and instruction set, which the extension or the platform's argument tells."""
    return numerics(NUMERICS, platform)


@hookimpl
def core_load(context: LoadContext) -> Kernels:
    """Start the thread pool and build the kernels."""
    from core_plugins.platforms.cpu.kernels import NativeKernels

    return NativeKernels(int(context.options.get("num_threads", 1)))
