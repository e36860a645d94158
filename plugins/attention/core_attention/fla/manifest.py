"""Manifest of the `fla` attention backend. Torch-free.

Owns: the backend's declared capabilities. Called by: `core.plugin`.
"""

from __future__ import annotations

import importlib.util

from core.api.reason import Reason
from core.api.specs import StateQuery
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_attention.fla.limits import MODULE, PACKAGE, STATE_OPS, lacking_state, version
from core_attention.triton.limits import NUMERICS
from core_runtime.contracts import StateBackend

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin: for NVIDIA GPUs with the library."""
    return PluginSpec(
        name="fla",
        summary="gated delta rule: prompts in chunks by flash-linear-attention, where it is installed, tokens by Triton",
        capabilities={
            "devices": ["cuda"],
            "layer_kinds": ["state"],
            "state_ops": list(STATE_OPS),
            "padding": True,
            "batch_invariant": False,
            "varies": "by where a prompt is cut, and above 64 new tokens",
        },
        priority=5,
    )


@hookimpl
def core_supports(query: StateQuery) -> list[Reason]:
    """Require the installed library and a layer that fits it."""
    if importlib.util.find_spec(MODULE) is None:
        return [Reason("missing_library", PACKAGE, "not installed", f"pip install {PACKAGE}")]
    return lacking_state(query)


@hookimpl
def core_numerics() -> str:
    """Return the version of the library and of the kernels for single tokens."""
    return f"{MODULE}-{version() or 'unknown'}+{NUMERICS}"


@hookimpl
def core_load(context: LoadContext) -> StateBackend:
    """Build the backend."""
    from core_attention.fla.backend import FlaStates

    return FlaStates(core_numerics())
