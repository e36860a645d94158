"""Sentences about a plugin that was chosen and then failed.

Owns: these sentences. Never does: choose, or leave a plugin out itself. Called by: resolve.
"""

from __future__ import annotations

from core.api.config import ResolvedPlugin
from core.api.errors import PluginError
from core.plugin.kinds import kind_named


def left_out(error: PluginError) -> str:
    """Return the warning for a plugin that the user did not name and that failed to load: the engine starts without
    it.
    """
    assert error.plugin is not None
    return f"{error} Nobody named it, so it is left out; --plugins no:{error.plugin.name} leaves it out from the beginning."


def way_out(row: ResolvedPlugin) -> str:
    """Return the ways out when no other plugin can replace the failed one."""
    argument = kind_named(row.kind).argument
    other = f"--{argument.replace('_', '-')} chooses another, " if argument else ""
    return (
        f"{other}--plugins no:{row.name} leaves it out, `core plugins check {row.kind}.{row.name}` tries it by itself."
    )
