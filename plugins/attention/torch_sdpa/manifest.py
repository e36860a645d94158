"""Manifest of the `torch_sdpa` attention backend. Torch-free.

Owns: what the backend claims to support. Called by: `core.plugin`.
"""

from __future__ import annotations

import importlib.metadata

from core.api.reason import Reason
from core.api.specs import AttentionQuery
from core.plugin.contracts import AttentionBackend
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Any device, head size and block size; not batch invariant."""
    return PluginSpec(
        name="torch_sdpa",
        summary="paged attention with torch's scaled_dot_product_attention; the reference",
        capabilities={
            "kv_dtypes": ["float32", "bfloat16", "float16"],
            "window": True,
            "cap": True,
            "sinks": False,
            "batch_invariant": False,
        },
        priority=0,
    )


@hookimpl
def core_supports(query: AttentionQuery) -> list[Reason]:
    """Equal query and value head sizes are all it needs."""
    spec = query.spec
    if spec.head_size != spec.head_size_v:
        return [Reason("head_size_v", f"{spec.head_size}", f"{spec.head_size_v}", "use a latent attention backend")]
    return []


@hookimpl
def core_numerics() -> str:
    """The version of torch."""
    return f"torch_sdpa-{importlib.metadata.version('torch').partition('+')[0]}"


@hookimpl
def core_load(context: LoadContext) -> AttentionBackend:
    """Build the backend."""
    from plugins.attention.torch_sdpa.backend import TorchSDPA

    return TorchSDPA()
