"""Manifest of the `triton` attention backend. Torch-free, and free of triton.

Owns: the backend's declared capabilities. Called by: `core.plugin`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from core.api.reason import Reason
from core.api.specs import AttentionQuery, StateQuery
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_attention.triton.limits import (
    BLOCK_SIZES,
    ELEMENTS,
    MAX_HEAD_SIZE,
    STATE_OPS,
    numerics_name,
    unsupported,
    unsupported_state,
)
from core_runtime.contracts import AttentionBackend

CONTRACT = 1


class AttentionArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The backend's own arguments."""

    states: Annotated[
        Literal["scanned", "chunked"],
        msgspec.Meta(
            description="How prompts advance recurrent states; scanned: token by token, as decoding does, with bits that "
            "depend on a sequence alone; chunked: gated delta rules and mamba2 by matrix products over 64 tokens, which is "
            "faster: bits then also depend on where steps cut a prompt, except at multiples of 64."
        ),
    ] = "scanned"


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
            "spans": True,
            "batch_invariant": True,
            "variant_arguments": {"states": {"chunked": "state"}},
        },
        arguments=AttentionArguments,
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
def core_numerics(arguments: Mapping[str, Any]) -> str:
    """Return the version of the arithmetic."""
    return numerics_name(arguments.get("states") == "chunked")


@hookimpl
def core_load(context: LoadContext) -> AttentionBackend:
    """Build the backend; kernels are compiled at their first launch, or ahead of time by `core kernels build`."""
    from core_attention.triton.backend import TritonAttention

    own = context.arguments or AttentionArguments()
    return TritonAttention(chunked_states=own.states == "chunked")
