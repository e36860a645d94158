"""Manifest of the `flex` attention backend. Torch-free.

Owns: the backend's declared capabilities. Called by: `core.plugin`.
"""

from __future__ import annotations

import importlib.metadata

from core.api.reason import Reason
from core.api.specs import AttentionQuery
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_attention.paged_limits import of_one_size
from core_runtime.contracts import AttentionBackend

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin: any layer with keys and values on a GPU. On a CPU it would only be a slower `torch_sdpa`."""
    return PluginSpec(
        name="flex",
        summary="paged attention with torch's flex_attention, compiled for what a layer asks for",
        capabilities={
            "devices": ["cuda", "rocm", "xpu"],
            "layer_kinds": ["full", "sliding"],
            "kv_dtypes": ["bfloat16", "float16", "float32"],
            "window": True,
            "cap": True,
            "sinks": True,
            "alibi": True,
            "chunked": True,
            "bidirectional": True,
            "batch_invariant": False,
        },
        priority=-10,
    )


@hookimpl
def core_supports(query: AttentionQuery) -> list[Reason]:
    """Require values as wide as keys."""
    return of_one_size(query)


@hookimpl
def core_numerics() -> str:
    """Return torch's version."""
    return f"flex-{importlib.metadata.version('torch').partition('+')[0]}"


@hookimpl
def core_load(context: LoadContext) -> AttentionBackend:
    """Build the backend."""
    from core_attention.flex.backend import FlexAttention

    return FlexAttention(core_numerics(), compiled=context.device.partition(":")[0] != "cpu")
