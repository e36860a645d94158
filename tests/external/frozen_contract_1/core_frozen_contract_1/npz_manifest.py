"""Manifest of `frozen_npz`: directories with config.json and frozen.npz."""

from core.api.checkpoint import FileFacts
from core.plugin.hookspecs import PluginSpec, hookimpl

CONTRACT = 1


@hookimpl
def core_spec():
    """Say what the plugin is."""
    return PluginSpec(name="frozen_npz", summary="numpy archives: config.json and frozen.npz")


@hookimpl
def core_claim(facts):
    """Claim directories with such an archive."""
    return "holds frozen.npz" if isinstance(facts, FileFacts) and "frozen.npz" in facts.names else None


@hookimpl
def core_load(context):
    """Build the loader."""
    from core_frozen_contract_1.npz import NpzLoader

    return NpzLoader()
