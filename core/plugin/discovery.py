"""Discovery of installed plugins from package metadata, without importing anything.

Owns: the rows that describe entry points. Never does: import a plugin. Called by: the registry; the composition of an engine,
for entry-point groups that are not kinds of plugins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from importlib_metadata import Distribution, EntryPoint, PackageNotFoundError, distributions
from importlib_metadata import distribution as find_distribution

from core.api.config import ResolvedPlugin
from core.api.errors import PluginError
from core.plugin.kinds import KINDS, normalize

ENGINE = "core-engine"
"""Name of the engine's main distribution. Its plugins are used without being named by the user."""


def discover(path: Sequence[str] | None = None) -> tuple[ResolvedPlugin, ...]:
    """Return every entry point of every kind's group, sorted by kind, name and distribution.

    path: directories to search, `sys.path` when None. Of a distribution that is on the path twice, the first counts.
    """
    rows: list[ResolvedPlugin] = []
    for distribution in _offering("[core.", path):
        rows += _rows(distribution)
    order = {kind.name: index for index, kind in enumerate(KINDS)}

    def place(row: ResolvedPlugin) -> tuple[int, str, str]:
        return order[row.kind], row.name, row.distribution

    return tuple(sorted(rows, key=place))


def plugins_of(distribution: str) -> list[ResolvedPlugin]:
    """Return the plugins of one distribution by its name; none when it is not installed."""
    try:
        return list(_rows(cast(Distribution, find_distribution(distribution))))
    except PackageNotFoundError:
        return []


def entry_points_of(group: str) -> list[tuple[EntryPoint, str]]:
    """Return the entry points of a group that is not a kind of plugin, each with its distribution's name and version.

    They are sorted by name. Raises PluginError when two have the same name.
    """
    found: dict[str, tuple[EntryPoint, str]] = {}
    for distribution in _offering(f"[{group}]"):
        for entry in distribution.entry_points.select(group=group):
            source = f"{distribution.name} {distribution.version}"
            if entry.name in found:
                raise PluginError(
                    f"'{entry.name}' of the group {group} is offered by {found[entry.name][1]} and by {source}; uninstall one."
                )
            found[entry.name] = (entry, source)
    return [found[name] for name in sorted(found)]


def _offering(text: str, path: Sequence[str] | None = None) -> Iterator[Distribution]:
    """Yield the distributions whose entry points contain `text`. Of one that is on the path twice, the first counts.

    path: directories to search, `sys.path` when None.
    """
    found = distributions() if path is None else distributions(path=list(path))
    seen: set[str] = set()
    for distribution in found:
        if text not in (distribution.read_text("entry_points.txt") or ""):
            continue  # True of almost all distributions: this test avoids parsing their metadata, which is slower.
        name = normalize(distribution.name)
        if name not in seen:
            seen.add(name)
            yield cast(Distribution, distribution)


def _rows(distribution: Distribution) -> Iterator[ResolvedPlugin]:
    """Yield one row for each plugin that a distribution offers."""
    kinds = {kind.group: kind.name for kind in KINDS}
    name = distribution.name
    version = distribution.version
    for entry in distribution.entry_points:
        if entry.group in kinds:
            target, _, _ = entry.value.partition("[")
            yield ResolvedPlugin(
                kind=kinds[entry.group],
                name=normalize(entry.name),
                target=target.strip(),
                distribution=name,
                version=version,
            )


def duplicates(rows: Iterable[ResolvedPlugin]) -> frozenset[tuple[str, str]]:
    """Return the (kind, name) pairs that more than one row offers."""
    counted = Counter((row.kind, row.name) for row in rows)
    return frozenset(key for key, count in counted.items() if count > 1)


def origin(row: ResolvedPlugin) -> str:
    """Say where a row comes from, for people: `core-engine 0.1.0`, or its file or module."""
    if row.distribution:
        return f"{row.distribution} {row.version}"
    return row.target.removeprefix("file:")


def label(row: ResolvedPlugin) -> str:
    """Return the label of a plugin in messages: kind, name and origin."""
    return f"{row.kind} plugin '{row.name}' ({origin(row)})"
