"""Commands that are declared in one row of a table: their help, and the function that is imported when they run.

Owns: `DeclaredCommand`. Never does: find a command, or import the plugin framework before a manifest is requested: `core
--help` reads only these rows. Called by: tables of commands, which entry points name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from core.entry_points import named


class DeclaredCommand:
    """One declared command. An entry point of the group `core.commands` may name it instead of a manifest.

    name:    the entry point's name: `run-batch`, or `plugins.list` for a command of two words.
    target:  `MODULE:FUNCTION`; the function takes the words after the name and returns the exit code.
    usages:  see `core.api.command.Command`.
    options: `MODULE:STRUCT` of the command's own options, for completion.
    """

    def __init__(self, name: str, target: str, *usages: tuple[str, str], options: Sequence[str] = ()) -> None:
        self.name = name
        self.usages: Sequence[tuple[str, str]] = usages
        self._target = target
        self._options = tuple(options)

    def as_manifest(self) -> Any:
        """Make the manifest that describes this command to the plugin framework."""
        from core.commands.manifest import CommandManifest

        return CommandManifest(self.name, self)

    def run(self, words: list[str]) -> int:
        """Import the function, call it with the words after the command's name, and return the exit code."""
        function: Callable[[list[str]], int] = named(self._target)
        return function(words)

    def options(self) -> list[Any]:
        """Import the Structs of the command's own options."""
        return [named(target) for target in self._options]
