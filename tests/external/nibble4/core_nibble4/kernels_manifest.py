"""Manifest of the kernels `nibble4`: products with 4-bit matrices, ahead of all others."""

from core.api.reason import Reason
from core.plugin.hookspecs import PluginSpec, hookimpl

CONTRACT = 1


@hookimpl
def core_spec():
    """Say what the plugin is."""
    return PluginSpec(
        name="nibble4",
        summary="products with 4-bit matrices on the processor",
        capabilities={"devices": ["cpu"], "formats": ["int4_groups"], "batch_invariant": True},
        priority=500,
    )


@hookimpl
def core_supports(query):
    """Matrix products only."""
    return [] if query.op == "linear" else [Reason("op", "linear", query.op)]


@hookimpl
def core_numerics():
    """Grows when results change."""
    return "nibble4-1"


@hookimpl
def core_load(context):
    """Build the kernels."""
    from core_nibble4.kernels import Nibble4Kernels

    return Nibble4Kernels()
