"""Manifest of the `torch_sdpa` attention backend. Torch-free.

Owns: the backend's declared capabilities. Called by: `core.plugin`.
"""

from __future__ import annotations

import importlib.metadata

from core.api.reason import Reason
from core.api.specs import KV_TYPES, STATE_TYPES, AttentionQuery, LatentSpec, StateQuery
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_runtime.contracts import AttentionBackend

CONTRACT = 1
CODED_MULTIPLE = 4
"""Of head sizes where values are 4-bit codes: the scales after them are float32."""


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin: any device, head size and block size; batch invariant only with --numerics reference."""
    return PluginSpec(
        name="torch_sdpa",
        summary="paged attention with torch's scaled_dot_product_attention; the reference",
        capabilities={
            "layer_kinds": ["full", "sliding", "latent", "state"],
            "kv_dtypes": [name for name, kind in KV_TYPES.items() if not kind.group],
            "window": True,
            "cap": True,
            "sinks": True,
            "alibi": True,
            "chunked": True,
            "bidirectional": True,
            "spans": True,
            "sparse": True,
            "padding": True,
            "strided": True,
            "tree": True,
            "invariant_kinds": ["state"],
            "state_dtypes": list(STATE_TYPES),
            "state_ops": ["short_conv", "mamba1", "mamba2", "gated_delta", "kda", "lightning", "cross_attention"],
            "batch_invariant": False,
            "reference_numerics": True,
        },
        priority=0,
    )


@hookimpl
def core_supports(query: AttentionQuery | StateQuery) -> list[Reason]:
    """Require separate values, which end with a whole word, where they are 4-bit codes."""
    if isinstance(query, StateQuery) or query.dtype not in KV_TYPES or KV_TYPES[query.dtype].packed == 1:
        return []
    spec = query.spec
    if isinstance(spec, LatentSpec):
        return [Reason("kv_cache_dtype", "a type for keys and values alike, for latent layers", query.dtype)]
    odd = [size for size in (spec.head_size, spec.head_size_v) if size % CODED_MULTIPLE]
    return [Reason("head_size", f"a multiple of {CODED_MULTIPLE} for {query.dtype}", str(odd[0]))] if odd else []


@hookimpl
def core_numerics() -> str:
    """Return torch's version."""
    return f"torch_sdpa-{importlib.metadata.version('torch').partition('+')[0]}"


@hookimpl
def core_load(context: LoadContext) -> AttentionBackend:
    """Build the backend."""
    from core_attention.torch_sdpa.backend import TorchSDPA

    return TorchSDPA(by_query=context.config is not None and context.config.model.numerics == "reference")
