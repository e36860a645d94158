"""The names of installed plugins that an argument can be given, for the help of that argument.

Owns: the rows (name, summary, package). Never does: choose a plugin, or try whether it works on this machine. Called by:
the help of single arguments.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from core.api.config import ResolvedPlugin
from core.args.schema import Field
from core.args.show import Section
from core.plugin.discovery import origin
from core.plugin.kinds import RESERVED_NAMES
from core.plugin.manifest import ManifestError
from core.plugin.registry import PluginRegistry
from core_config.stages.quantization_names import METHOD_NAMES
from core_formats.plugin_rows import installed_rows
from core_formats.row_files import FormatKind, names_of, own_rows

FORMATS: Final[dict[str, FormatKind]] = {"tool_call_parser": "tools", "reasoning_parser": "reasoning"}
"""Arguments whose names are rows of data, from the engine or from plugins of the kind response_format."""
OTHERS: Final = "names of other engines"


def names_for(field: Field) -> list[Section]:
    """Return the names that an argument, or one of its keys, can be given; empty for an argument that names no plugin."""
    registry = PluginRegistry(words=os.environ.get("CORE_PLUGINS"))
    if field.name in FORMATS:
        return [Section(f"Names for {field.flag}", tuple(_formats(FORMATS[field.name], registry)))]
    sections = []
    for flag, kind in _kinds_of(field, field.flag):
        sections.append(Section(f"Names for {flag}", tuple(_plugins(kind, registry))))
    return sections


def _kinds_of(field: Field, flag: str) -> Iterator[tuple[str, str]]:
    """Yield (flag, kind of plugin) of an argument and its keys that name plugins."""
    if field.arg.plugin is not None:
        yield flag, field.arg.plugin
    for key in field.keys.values():
        yield from _kinds_of(key, f"{flag}.{key.name}")


def _plugins(kind: str, registry: PluginRegistry) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of each plugin of a kind, and where their states are listed."""
    rows = [row for row in registry.rows(kind) if row.name not in RESERVED_NAMES]
    registry.rehearse([row for row in rows if not registry.own(row)], ())
    names = [row.name for row in rows]
    for row in rows:
        # A name that two packages offer has to be written with its package.
        name = row.name if names.count(row.name) == 1 else f"{row.distribution}:{row.name}"
        yield name, f"{_summary(row, registry)} ({origin(row)})"
    if kind == "quantization":
        yield OTHERS, ", ".join(f"{name} ({means})" for name, means in METHOD_NAMES.aliases.items())
    if rows:
        yield f"core plugins list --kind={kind}", "Whether each can be used on this machine."
    else:
        yield "(none)", "No installed package offers one."


def _summary(row: ResolvedPlugin, registry: PluginRegistry) -> str:
    """Return what a plugin is, or why it cannot be used."""
    if registry.blocked(row):
        return f"cannot be used: {registry.blocked(row)}"
    try:
        return registry.manifest(row).spec.summary or "without a description"
    except ManifestError as error:
        return f"cannot be used: {error}"


def _formats(kind: FormatKind, registry: PluginRegistry) -> Iterator[tuple[str, str]]:
    """Yield (names, text) of each format that can be named."""
    origins = [(own_rows(), "core-engine-response-formats"), (installed_rows(registry), "a plugin")]
    for rows, source in origins:
        for row in rows:
            names = names_of(row, kind)
            if names:
                yield ", ".join(names), f"{row.summary} ({source})"
