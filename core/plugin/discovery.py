"""Names of plugins, read from package metadata without importing anything.

Owns: rows of entry points. Never does: import a plugin. Called by: the registry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from importlib_metadata import Distribution, PackageNotFoundError, distributions
from importlib_metadata import distribution as find_distribution

from core.api.config import ResolvedPlugin
from core.plugin.kinds import KINDS, normalize

ENGINE = "core-engine"
"""The engine's own distribution, whose plugins need not be named."""


def discover(path: Sequence[str] | None = None) -> tuple[ResolvedPlugin, ...]:
    """Every entry point of every kind's group, sorted by kind, name and distribution.

    path: directories to search, `sys.path` when None. A distribution found twice on the path counts once, the first.
    """
    found = distributions() if path is None else distributions(path=list(path))
    seen: set[str] = set()
    rows: list[ResolvedPlugin] = []
    for distribution in found:
        entry_points = distribution.read_text("entry_points.txt") or ""
        if "[core." not in entry_points:
            continue  # almost all: a look at the text spares reading their metadata
        name = normalize(distribution.name)
        if name not in seen:
            seen.add(name)
            rows += _rows(cast(Distribution, distribution))
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
