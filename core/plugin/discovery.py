"""Names of plugins, read from package metadata without importing anything.

Owns: rows of entry points. Never does: import a plugin. Called by: the registry.
"""

from __future__ import annotations

import importlib.metadata
from collections import Counter
from collections.abc import Iterable, Sequence

from core.api.config import ResolvedPlugin
from core.plugin.kinds import KINDS, normalize


def discover(path: Sequence[str] | None = None) -> tuple[ResolvedPlugin, ...]:
    """Every entry point of every kind's group, sorted by kind, name and distribution.

    path: directories to search, `sys.path` when None. A distribution found twice on the path counts once, the first.
    """
    groups = {kind.group: kind.name for kind in KINDS}
    found = importlib.metadata.distributions() if path is None else importlib.metadata.distributions(path=list(path))
    seen: set[str] = set()
    rows: list[ResolvedPlugin] = []
    for distribution in found:
        text = distribution.read_text("entry_points.txt")
        if not text or "[core." not in text:
            continue
        name = distribution.metadata["Name"] or "unknown"
        if normalize(name) in seen:
            continue
        seen.add(normalize(name))
        rows += [
            ResolvedPlugin(
                kind=groups[entry.group],
                name=normalize(entry.name),
                target=entry.value,
                distribution=name,
                version=distribution.version,
            )
            for entry in distribution.entry_points
            if entry.group in groups
        ]
    order = {kind.name: index for index, kind in enumerate(KINDS)}
    return tuple(sorted(rows, key=lambda row: (order[row.kind], row.name, row.distribution)))


def duplicates(rows: Iterable[ResolvedPlugin]) -> frozenset[tuple[str, str]]:
    """(kind, name) pairs that more than one row offers."""
    counted = Counter((row.kind, row.name) for row in rows)
    return frozenset(key for key, count in counted.items() if count > 1)


def origin(row: ResolvedPlugin) -> str:
    """Where a row comes from, for people: `core-engine 0.1.0`, or its file or module."""
    return f"{row.distribution} {row.version}" if row.distribution else row.target.removeprefix("file:")
