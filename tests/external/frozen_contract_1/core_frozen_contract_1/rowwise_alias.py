"""`frozen_rowwise` is another name of `frozen_int8`."""

from core.plugin.hookspecs import PluginSpec, hookimpl

CONTRACT = 1


@hookimpl
def core_spec():
    """Say whose other name this is."""
    return PluginSpec(name="frozen_rowwise", alias_of="frozen_int8")
