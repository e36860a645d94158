"""Manifest of the family `birch`."""

from core.plugin.hookspecs import PluginSpec, hookimpl
from core_runtime.specs.checkpoint import CheckpointFacts

CONTRACT = 1


@hookimpl
def core_spec():
    """Say what the plugin is."""
    return PluginSpec(name="birch", summary="birch: a decoder with older names for everything")


@hookimpl
def core_claim(facts):
    """By its model_type."""
    mine = isinstance(facts, CheckpointFacts) and facts.model_type == "birch"
    return "its model_type is birch" if mine else None


@hookimpl
def core_load(context):
    """Build the family."""
    from core_birch.family import Birch

    return Birch()
