"""Manifest of the `flash_attn` attention backend. Torch-free.

Owns: the backend's declared capabilities. Called by: `core.plugin`.
"""

from __future__ import annotations

import importlib.metadata

from core.api.reason import Reason
from core.api.specs import AttentionQuery
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_attention.flash_attn.versions import fitting, installed
from core_runtime.contracts import AttentionBackend

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin: for NVIDIA GPUs with the library."""
    return PluginSpec(
        name="flash_attn",
        summary="paged attention by the library FlashAttention 2 or 3, where it is installed",
        capabilities={
            "devices": ["cuda"],
            "layer_kinds": ["full", "sliding"],
            "kv_dtypes": ["bfloat16", "float16"],
            "window": True,
            "cap": True,
            "alibi": any(version.alibi for version in installed()),
            "padding": True,
            "batch_invariant": False,
        },
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
    names = []
    for version in installed():
        try:
            number = importlib.metadata.version(version.package)
        except importlib.metadata.PackageNotFoundError:  # built in place, without package metadata
            number = "unknown"
        names.append(f"{version.module}-{number}")
    return "+".join(names) or "flash_attn"


@hookimpl
def core_load(context: LoadContext) -> AttentionBackend:
    """Build the backend."""
    from core_attention.flash_attn.backend import FlashAttention

    return FlashAttention(core_numerics())
