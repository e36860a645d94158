"""Manifest of the `triton` attention backend. Torch-free, and free of triton.

Owns: the backend's declared capabilities. Called by: `core.plugin`.
"""

from __future__ import annotations

import importlib.util

from core.api.reason import Reason
from core.api.specs import AttentionQuery, StateQuery
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_attention.triton.limits import (
    BLOCK_SIZES,
    ELEMENTS,
    MAX_HEAD_SIZE,
    NUMERICS,
    STATE_OPS,
    unsupported,
    unsupported_state,
)
from core_runtime.contracts import AttentionBackend

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin: for GPUs; batch invariant."""
    return PluginSpec(
        name="triton",
        summary="paged and latent attention and layers with a state on Triton kernels",
        capabilities={
            "devices": ["cuda", "rocm"],
            "layer_kinds": ["full", "sliding", "latent", "state"],
            "state_ops": list(STATE_OPS),
            "kv_dtypes": list(ELEMENTS),
            "block_sizes": list(BLOCK_SIZES),
            "max_head_size": MAX_HEAD_SIZE,
            "window": True,
            "cap": True,
            "sinks": True,
            "alibi": True,
            "chunked": True,
            "padding": True,
            "tree": True,
            "batch_invariant": True,
        },
        priority=100,
    )


@hookimpl
def core_supports(query: AttentionQuery | StateQuery) -> list[Reason]:
    """Require a layer that fits the kernels, and an installed triton."""
    reasons = unsupported_state(query) if isinstance(query, StateQuery) else unsupported(query)
    if importlib.util.find_spec("triton") is None:
        reasons.append(Reason("missing_library", "triton", "not installed", "pip install triton"))
    return reasons


@hookimpl
def core_numerics() -> str:
    """Return the version of the arithmetic."""
    return NUMERICS


@hookimpl
def core_load(context: LoadContext) -> AttentionBackend:
    """Build the backend; kernels are compiled at their first launch, or ahead of time by `core kernels build`."""
    from core_attention.triton.backend import TritonAttention

    return TritonAttention()
