"""Manifest of the `torch_sdpa` attention backend. Torch-free.

Owns: the backend's declared capabilities. Called by: `core.plugin`.
"""

from __future__ import annotations

import importlib.metadata

from core.api.specs import KV_TYPES
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_runtime.contracts import AttentionBackend

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin: any device, head size and block size; batch invariant only with --numerics reference."""
    return PluginSpec(
        name="torch_sdpa",
        summary="paged attention with torch's scaled_dot_product_attention; the reference",
        capabilities={
            "layer_kinds": ["full", "sliding", "latent", "state"],
            "kv_dtypes": list(KV_TYPES),
            "window": True,
            "cap": True,
            "sinks": True,
            "alibi": True,
            "chunked": True,
            "bidirectional": True,
            "padding": True,
            "tree": True,
            "invariant_kinds": ["state"],
            "state_ops": ["short_conv", "mamba1", "mamba2", "gated_delta", "kda"],
            "batch_invariant": False,
            "reference_numerics": True,
        },
        priority=0,
    )


@hookimpl
def core_numerics() -> str:
    """Return torch's version."""
    return f"torch_sdpa-{importlib.metadata.version('torch').partition('+')[0]}"


@hookimpl
def core_load(context: LoadContext) -> AttentionBackend:
    """Build the backend."""
    from core_attention.torch_sdpa.backend import TorchSDPA

    return TorchSDPA(by_query=context.config is not None and context.config.model.numerics == "reference")
