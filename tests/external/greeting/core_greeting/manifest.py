"""Manifest of the command `hello`."""

from core.plugin.hookspecs import PluginSpec, hookimpl

CONTRACT = 1


@hookimpl
def core_spec():
    """Say what the plugin is."""
    return PluginSpec(name="hello", summary="Greet somebody.")


@hookimpl
def core_load(context):
    """Build the command."""
    from core_greeting.hello import Hello

    return Hello()
