"""Manifest of the `flash_attn` attention backend. Torch-free.

Owns: the backend's declared capabilities. Called by: `core.plugin`.
"""

from __future__ import annotations

from core.api.reason import Reason
from core.api.specs import AttentionQuery
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_attention.flash_attn.versions import fitting, installed, number_of
from core_attention.invariant import Arguments
from core_runtime.contracts import AttentionBackend

CONTRACT = 1
KINDS = ["full", "sliding"]


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin: for NVIDIA GPUs with the library."""
    return PluginSpec(
        name="flash_attn",
        summary="paged attention by the library FlashAttention 2, 3 or 4, where it is installed",
        capabilities={
            "devices": ["cuda"],
            "layer_kinds": KINDS,
            "kv_dtypes": ["bfloat16", "float16"],
            "window": True,
            "cap": True,
            "alibi": any(version.alibi for version in installed()),
            "sinks": any(version.sinks for version in installed()),
            "padding": True,
            "batch_invariant": False,
            "invariant_on_request": KINDS if all(version.invariant for version in installed()) else [],
        },
        arguments=Arguments,
        priority=20,
    )


@hookimpl
def core_supports(query: AttentionQuery) -> list[Reason]:
    """Require an installed version that serves the layer."""
    _, reasons = fitting(query)
    return reasons


@hookimpl
def core_numerics() -> str:
    """Return the installed versions, one of which is used."""
    names = [f"{version.module}-{number_of(version) or 'unknown'}" for version in installed()]
    return "+".join(names) or "flash_attn"


@hookimpl
def core_load(context: LoadContext) -> AttentionBackend:
    """Build the backend."""
    from core_attention.flash_attn.backend import FlashAttention

    own = context.arguments or Arguments()
    return FlashAttention(core_numerics(), invariant=own.invariant)
