"""Names of plugins, read from package metadata without importing anything.

Owns: rows of entry points. Never does: import a plugin. Called by: the registry; the composition of an engine, for a group that
is no kind of plugin.
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
"""The engine's own distribution, whose plugins need not be named."""


def discover(path: Sequence[str] | None = None) -> tuple[ResolvedPlugin, ...]:
    """Every entry point of every kind's group, sorted by kind, name and distribution.

    path: directories to search, `sys.path` when None. A distribution found twice on the path counts once, the first.
    """
    rows: list[ResolvedPlugin] = []
    for distribution in _offering("[core.", path):
        rows += _rows(distribution)
    order = {kind.name: index for index, kind in enumerate(KINDS)}

    def place(row: ResolvedPlugin) -> tuple[int, str, str]:
        return order[row.kind], row.name, row.distribution

    return tuple(sorted(rows, key=place))


def plugins_of(distribution: str) -> list[ResolvedPlugin]:
    """The plugins of one distribution, found by its name; none when it is not installed."""
    try:
        return list(_rows(cast(Distribution, find_distribution(distribution))))
    except PackageNotFoundError:
        return []


def entry_points_of(group: str) -> list[tuple[EntryPoint, str]]:
    """The entry points of one group that is no kind of plugin, each with its distribution's name and version, by their names.

    Raises PluginError when two have the same name.
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
    """Distributions whose entry points contain a text; one that is found twice on the path counts once, the first.

    path: directories to search, `sys.path` when None.
    """
    found = distributions() if path is None else distributions(path=list(path))
    seen: set[str] = set()
    for distribution in found:
        if text not in (distribution.read_text("entry_points.txt") or ""):
            continue  # almost all: a look at the text spares reading their metadata
        name = normalize(distribution.name)
        if name not in seen:
            seen.add(name)
            yield cast(Distribution, distribution)


def _rows(distribution: Distribution) -> Iterator[ResolvedPlugin]:
    """One row for each plugin that a distribution offers."""
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
    """(kind, name) pairs that more than one row offers."""
    counted = Counter((row.kind, row.name) for row in rows)
    return frozenset(key for key, count in counted.items() if count > 1)


def origin(row: ResolvedPlugin) -> str:
    """Where a row comes from, for people: `core-engine 0.1.0`, or its file or module."""
    if row.distribution:
        return f"{row.distribution} {row.version}"
    return row.target.removeprefix("file:")


def label(row: ResolvedPlugin) -> str:
    """How a sentence names a plugin: kind, name and origin."""
    return f"{row.kind} plugin '{row.name}' ({origin(row)})"
