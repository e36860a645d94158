"""Manifest of `example_repeat`: drafts that repeat the last token."""

from core.plugin.hookspecs import PluginSpec, hookimpl

CONTRACT = 1


@hookimpl
def core_spec():
    """Say what the plugin is."""
    return PluginSpec(name="example_repeat", summary="drafts repeat the last token")


@hookimpl
def core_load(context):
    """Build the proposer."""
    from core_example_plugins.repeat import Repeat

    return Repeat()
