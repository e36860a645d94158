"""Manifest of `frozen_repeat`: drafts that repeat the last token."""

from core.plugin.hookspecs import PluginSpec, hookimpl

CONTRACT = 1


@hookimpl
def core_spec():
    """Say what the plugin is."""
    return PluginSpec(name="frozen_repeat", summary="drafts repeat the last token")


@hookimpl
def core_load(context):
    """Build the proposer."""
    from core_frozen_contract_1.repeat import Repeat

    return Repeat()
