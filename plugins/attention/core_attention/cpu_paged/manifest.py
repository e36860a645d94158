"""Manifest of the `cpu_paged` attention backend. Torch-free.

Owns: the backend's declared capabilities. Called by: `core.plugin`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.api.reason import Reason
from core.api.specs import AttentionQuery, StateQuery
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_attention.cpu_paged.limits import (
    ELEMENTS,
    GATHERED_BYTES,
    HEAD_MULTIPLE,
    MAX_HEAD_SIZE,
    MIN_HEAD_SIZE,
    SERVED_STATES,
    STATE_OPS,
    VERSION,
    unsupported,
    unsupported_state,
)
from core_platforms.cpu.extension import kernels_or_reason, numerics
from core_runtime.contracts import AttentionBackend

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin: for the CPU with the native extension; batch invariant."""
    return PluginSpec(
        name="cpu_paged",
        summary="paged attention and layers with a state on the native CPU kernels",
        capabilities={
            "devices": ["cpu"],
            "layer_kinds": ["full", "sliding", "latent", "state"],
            "state_ops": list(STATE_OPS),
            "state_dtypes": list(SERVED_STATES),
            "kv_dtypes": list(ELEMENTS),
            "head_size_multiple": HEAD_MULTIPLE,
            "min_head_size": MIN_HEAD_SIZE,
            "max_head_size": MAX_HEAD_SIZE,
            "window": True,
            "cap": True,
            "sinks": True,
            "alibi": True,
            "chunked": True,
            "bidirectional": True,
            "spans": True,
            "sparse": True,
            "gathered_bytes": GATHERED_BYTES,
            "cascade": True,
            "padding": True,
            "strided": True,
            "tree": True,
            "batch_invariant": True,
        },
        priority=100,
    )


@hookimpl
def core_supports(query: AttentionQuery | StateQuery) -> list[Reason]:
    """Require a layer that fits the kernel, and the compiled extension."""
    native = kernels_or_reason()
    lacking = unsupported_state(query) if isinstance(query, StateQuery) else unsupported(query)
    return lacking + ([native] if isinstance(native, Reason) else [])


@hookimpl
def core_numerics(platform: Mapping[str, Any]) -> str | None:
    """Return the arithmetic's version and instruction set, taken from the extension or from the platform's argument."""
    return numerics(f"cpu-paged-{VERSION}", platform)


@hookimpl
def core_load(context: LoadContext) -> AttentionBackend:
    """Build the backend; it uses the threads of the platform's kernels."""
    from core_attention.cpu_paged.backend import CpuPagedAttention

    return CpuPagedAttention()
