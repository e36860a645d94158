"""The lookup of the command that the first words of a command line name.

Owns: that lookup, and the messages for words that name no command. Never does: import a command of another package unless its
name was typed. Called by: `core.commands.main`, the overview, completion.

Commands of the project are read from their own distributions, without the plugin framework, so that the lookup takes only a
few milliseconds. All others are plugins of kind `command`, which the registry finds like every plugin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from core.api.command import Command
from core.api.errors import PluginError, UserError, nearest
from core.commands.declared import DeclaredCommand
from core.commands.table import KNOWN
from core.entry_points import named, offers

if TYPE_CHECKING:
    from core.api.config import ResolvedPlugin
    from core.plugin.registry import PluginRegistry

GROUP: Final = "core.commands"
"""Entry-point group of commands, as in `core.plugin.kinds`."""


def find(words: Sequence[str]) -> tuple[Command | None, list[str]]:
    """Return the command that `words` begin with, and the words after its name; None for a group whose help is requested.

    words: at least one. Raises UserError when they name no command, ManifestError when the command's plugin is broken.
    """
    names = _names(words)
    for number, name in names.items():
        command = own_commands().get(name) if name in KNOWN else None
        if command is not None:
            return command, list(words[number:])
    return _of_plugins(words, names)


def own_commands() -> dict[str, DeclaredCommand]:
    """Return the installed commands of the project, in the order of help."""
    targets = {offer.name: offer.target for offer in offers(GROUP, *KNOWN.values())}
    found: dict[str, DeclaredCommand] = {}
    for name in KNOWN:
        command = named(targets[name]) if name in targets else None
        if isinstance(command, DeclaredCommand):
            found[name] = command
    return found


def spoken(name: str) -> str:
    """Return a command's name as it is typed: `plugins list` for `plugins.list`."""
    return name.replace(".", " ")


def _names(words: Sequence[str]) -> dict[int, str]:
    """Return the names that the first words may form, by the number of words: two words come before one."""
    first, *rest = words
    if rest and not rest[0].startswith("-"):
        return {2: f"{first}.{rest[0]}", 1: first}
    return {1: first}


def _of_plugins(words: Sequence[str], names: dict[int, str]) -> tuple[Command | None, list[str]]:
    """Do what `find` does, among the commands of other packages."""
    from core.plugin.registry import PluginRegistry
    from core.plugin.words import called

    registry = PluginRegistry()
    rows = registry.rows("command")
    for number, name in names.items():
        if called(rows, name):
            return _loaded(registry, name), list(words[number:])
    for name in names.values():
        if name in KNOWN:
            raise UserError(_missing(name))
    first = words[0]
    inner = sorted(_typed(row).partition(".")[2] for row in rows if row.name.startswith(f"{first}."))
    if not inner:
        heads = dict.fromkeys(name.partition(".")[0] for name in [*KNOWN, *(_typed(row) for row in rows)])
        raise UserError(f"core {first}: unknown command; known: {', '.join(heads)}.{nearest(first, heads)}")
    if 2 in names:
        wrong = words[1]
        raise UserError(f"core {first} {wrong}: unknown; known: {', '.join(inner)}.{nearest(wrong, inner)}")
    return None, list(words[1:])


def _typed(row: ResolvedPlugin) -> str:
    """Return a plugin's name with hyphens, as commands are typed: discovery replaced them by underscores."""
    return row.name.replace("_", "-")


def _loaded(registry: PluginRegistry, name: str) -> Command:
    """Load the command of a plugin. It was named by the user, so it needs no trial run. Raises UserError and PluginError."""
    from core.plugin.discovery import label
    from core.plugin.hookspecs import LoadContext

    manifest = registry.get("command", name)
    command = manifest.call("core_load", context=LoadContext())
    if not isinstance(command, Command):
        kind = type(command).__name__
        raise PluginError(
            f"{label(manifest.row)}: core_load answered a {kind}, expected `usages` and `run`; see core.api.command.Command.",
            manifest.row,
        )
    return command


def _missing(name: str) -> str:
    """Say how to install a command of the project that is missing."""
    from core.plugin.editable import stale

    distribution = KNOWN[name]
    why = stale(distribution)
    way_out = f"{why[0].upper()}{why[1:]}" if why else f"Install it with `pip install {distribution}`"
    return f"core {spoken(name)}: this command comes with {distribution}, and it is not installed here. {way_out}."
