"""Manifest of the `flashinfer` attention backend. Torch-free.

Owns: the backend's declared capabilities. Called by: `core.plugin`.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util

from core.api.reason import Reason
from core.api.specs import AttentionQuery, AttentionSpec
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_attention.paged_limits import of_one_size
from core_platforms.cuda.chips import sm_of
from core_runtime.contracts import AttentionBackend

CONTRACT = 1
MODULE = "flashinfer"
PACKAGE = "flashinfer-python"
LEAST_SM = 75


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin: for NVIDIA GPUs with the library. A step's plan is made on the host, so nothing is recorded."""
    return PluginSpec(
        name="flashinfer",
        summary="paged attention by the library FlashInfer, where it is installed",
        capabilities={
            "devices": ["cuda"],
            "layer_kinds": ["full", "sliding"],
            "kv_dtypes": ["bfloat16", "float16"],
            "head_sizes": [64, 128, 256],
            "window": True,
            "cap": True,
            "batch_invariant": False,
        },
        priority=10,
    )


@hookimpl
def core_supports(query: AttentionQuery) -> list[Reason]:
    """Require the installed library and a layer that fits it."""
    if importlib.util.find_spec(MODULE) is None:
        return [Reason("missing_library", PACKAGE, "not installed", f"pip install {PACKAGE}")]
    reasons = of_one_size(query)
    sm = sm_of(query.profile)
    if sm and sm < LEAST_SM:
        reasons.append(Reason("device", f"sm_{LEAST_SM} or newer", f"sm_{sm}"))
    if isinstance(query.spec, AttentionSpec) and query.block_size > 128:
        reasons.append(Reason("block_size", "at most 128", str(query.block_size), "--block-size chooses another"))
    return reasons


@hookimpl
def core_numerics() -> str:
    """Return the library's version."""
    try:
        return f"flashinfer-{importlib.metadata.version(PACKAGE)}"
    except importlib.metadata.PackageNotFoundError:  # built in place, without package metadata
        return "flashinfer-unknown"


@hookimpl
def core_load(context: LoadContext) -> AttentionBackend:
    """Build the backend."""
    from core_attention.flashinfer.backend import FlashInfer

    return FlashInfer(core_numerics())
