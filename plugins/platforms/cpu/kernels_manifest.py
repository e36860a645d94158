"""Manifest of the `cpu_native` kernels. Torch-free.

Owns: what the kernels claim to support before they are loaded. Called by: `core.plugin`.
"""

from __future__ import annotations

from core.api.reason import Reason
from core.api.specs import KernelQuery
from core.plugin.contracts import Kernels
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from plugins.platforms.cpu.extension import kernels_or_reason

CONTRACT = 1
OPERATIONS = frozenset({"linear", "rms_norm", "rms_norm_heads", "rotary", "gated", "add", "scale"})


@hookimpl
def core_spec() -> PluginSpec:
    """Say what the plugin is."""
    return PluginSpec(
        name="cpu_native",
        summary="compiled kernels: packed linear layers in a fixed order of summation, norms, rotary, gates",
        capabilities={
            "devices": ["cpu"],
            "formats": ["float32", "float16", "bfloat16", "int4_groups", "int8_groups"],
            "batch_invariant": True,
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
def core_load(context: LoadContext) -> Kernels:
    """Start the thread pool and build the kernels."""
    from plugins.platforms.cpu.kernels import NativeKernels

    return NativeKernels(int(context.options.get("num_threads", 1)))
