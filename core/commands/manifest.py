"""The manifest of a declared command.

Owns: its hooks. Never does: import the command's function. Called by: `core.commands.declared`, when plugins are listed.
"""

from __future__ import annotations

from typing import Final

from core.api.command import Command
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl


class CommandManifest:
    """The manifest of one `DeclaredCommand`, made when the plugin framework asks for it."""

    CONTRACT: Final = 1

    def __init__(self, name: str, command: Command) -> None:
        self._name = name
        self._command = command

    @hookimpl
    def core_spec(self) -> PluginSpec:
        """Describe the command as a plugin."""
        return PluginSpec(name=self._name, summary=self._command.usages[0][1])

    @hookimpl
    def core_load(self, context: LoadContext) -> Command:
        """Return the command, which is already complete."""
        return self._command
