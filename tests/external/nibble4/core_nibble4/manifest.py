"""Manifest of the method `nibble4`: checkpoints whose config.json declares it."""

from core.plugin.hookspecs import PluginSpec, hookimpl

CONTRACT = 1


@hookimpl
def core_spec():
    """Say what the plugin is."""
    return PluginSpec(name="nibble4", summary="4-bit integers, eight in a word, in interleaved order")


@hookimpl
def core_load(context):
    """Build the method for the checkpoint."""
    from core_nibble4.method import Nibble4

    return Nibble4(context.manifest)
