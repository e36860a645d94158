"""Manifest of the family `maple`."""

from core.plugin.hookspecs import PluginSpec, hookimpl

CONTRACT = 1


@hookimpl
def core_spec():
    """Say what the plugin is."""
    return PluginSpec(name="maple", summary="maple: a llama with fused projections, scalars and names of its own")


@hookimpl
def core_claim(facts):
    """By its model_type."""
    return "its model_type is maple" if getattr(facts, "model_type", "") == "maple" else None


@hookimpl
def core_load(context):
    """Build the family."""
    from core_maple.family import Maple

    return Maple()
