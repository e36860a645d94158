"""Manifest of the family `sprig`."""

from core.plugin.hookspecs import PluginSpec, hookimpl
from core_runtime.specs.checkpoint import CheckpointFacts

CONTRACT = 1


@hookimpl
def core_spec():
    """Say what the plugin is."""
    return PluginSpec(name="sprig", summary="sprig: layers with gated linear attention between full ones")


@hookimpl
def core_claim(facts):
    """By its model_type."""
    mine = isinstance(facts, CheckpointFacts) and facts.model_type == "sprig"
    return "its model_type is sprig" if mine else None


@hookimpl
def core_load(context):
    """Build the family."""
    from core_state_gated.family import Sprig

    return Sprig()
