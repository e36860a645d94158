"""`example_rowwise` is another name of `example_int8`."""

from core.plugin.hookspecs import PluginSpec, hookimpl

CONTRACT = 1


@hookimpl
def core_spec():
    """Say whose other name this is."""
    return PluginSpec(name="example_rowwise", alias_of="example_int8")
