"""A platform whose driver crashes."""

import os

from core.plugin.hookspecs import PluginSpec, hookimpl

CONTRACT = 1


@hookimpl
def core_spec():
    """Say what the plugin is; it would win."""
    return PluginSpec(name="broken_probe", priority=1000)


@hookimpl
def core_probe():
    """Crash as a driver does."""
    os.abort()


@hookimpl
def core_load(context):
    """Never reached."""
