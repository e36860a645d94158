"""Manifest of `example_npz`: directories with config.json and weights.npz."""

from core.plugin.hookspecs import PluginSpec, hookimpl
from core_runtime.specs.checkpoint import FileFacts

CONTRACT = 1


@hookimpl
def core_spec():
    """Say what the plugin is."""
    return PluginSpec(name="example_npz", summary="numpy archives: config.json and weights.npz")


@hookimpl
def core_claim(facts):
    """Claim directories with such an archive."""
    return "holds weights.npz" if isinstance(facts, FileFacts) and "weights.npz" in facts.names else None


@hookimpl
def core_load(context):
    """Build the loader."""
    from core_example_plugins.npz import NpzLoader

    return NpzLoader()
