"""The manifest of a declared command.

Owns: its hooks. Never does: import the command's function. Called by: `core.commands.declared`, when plugins are listed.
"""

from __future__ import annotations

from typing import Final

from core.api.command import Command
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl


class CommandManifest:
    """Manifest of one command that a row declares."""

    CONTRACT: Final = 1

    def __init__(self, name: str, command: Command) -> None:
        self._name = name
        self._command = command

    @hookimpl
    def core_spec(self) -> PluginSpec:
        """Say what the plugin is."""
        return PluginSpec(name=self._name, summary=self._command.usages[0][1])

    @hookimpl
    def core_load(self, context: LoadContext) -> Command:
        """Return the command."""
        return self._command
