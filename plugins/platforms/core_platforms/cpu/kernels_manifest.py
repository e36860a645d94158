"""Manifest of the `cpu_native` kernels. Torch-free.

Owns: the capabilities that the kernels declare before they are loaded. Called by: `core.plugin`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.api.reason import Reason
from core.api.specs import KernelQuery
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_platforms.cpu.extension import kernels_or_reason, numerics
from core_platforms.cpu.kernels_limits import FORMATS, NUMERICS, OPERATIONS
from core_runtime.contracts import Kernels

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin."""
    return PluginSpec(
        name="cpu_native",
        summary="compiled kernels: packed linear layers in a fixed order of summation, norms, rotary, gates, sampling",
        capabilities={
            "devices": ["cpu"],
            "formats": FORMATS,
            "batch_invariant": True,
            "row_multiple": 32,
            "rank_multiple": 16,
        },
        priority=100,
    )


@hookimpl
def core_supports(query: KernelQuery) -> list[Reason]:
    """Require the compiled extension and a known operation."""
    reasons = []
    if query.op not in OPERATIONS:
        reasons.append(Reason("op", ", ".join(sorted(OPERATIONS)), query.op))
    native = kernels_or_reason()
    return [*reasons, native] if isinstance(native, Reason) else reasons


@hookimpl
def core_numerics(platform: Mapping[str, Any]) -> str | None:
    """Return the arithmetic's version and instruction set, taken from the extension or from the platform's argument."""
    return numerics(NUMERICS, platform)


@hookimpl
def core_load(context: LoadContext) -> Kernels:
    """Start the thread pool and build the kernels."""
    from core_platforms.cpu.kernels import NativeKernels

    return NativeKernels(int(context.options.get("num_threads", 1)))
