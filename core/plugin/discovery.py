"""Names of plugins, read from package metadata without importing anything.

Owns: rows of entry points. Never does: import a plugin. Called by: the registry.
"""

from __future__ import annotations

import importlib.metadata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from core.api.config import ResolvedPlugin
from core.plugin.kinds import KINDS, normalize

ENGINE = "core-engine"
"""The engine's own distribution, whose plugins need not be named."""


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
        name, version = _name_and_version(distribution)
        if normalize(name) in seen:
            continue
        seen.add(normalize(name))
        rows += [
            ResolvedPlugin(kind=groups[group], name=normalize(entry), target=target, distribution=name, version=version)
            for group, entry, target in _entries(text)
            if group in groups
        ]
    order = {kind.name: index for index, kind in enumerate(KINDS)}
    return tuple(sorted(rows, key=lambda row: (order[row.kind], row.name, row.distribution)))


def _name_and_version(distribution: importlib.metadata.Distribution) -> tuple[str, str]:
    """From the head of the metadata, which is much quicker than parsing all of it."""
    head = (distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or "").partition("\n\n")[0]
    fields = dict(line.split(": ", 1) for line in head.splitlines() if line.startswith(("Name: ", "Version: ")))
    return fields.get("Name", "unknown").strip(), fields.get("Version", "").strip()


def _entries(text: str) -> Iterator[tuple[str, str, str]]:
    """(group, name, target) of an entry_points.txt; extras behind a target are left out."""
    group = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            group = line.strip("[]").strip()
        elif "=" in line and not line.startswith(("#", ";")):
            name, _, target = line.partition("=")
            yield group, name.strip(), target.partition("[")[0].strip()


def duplicates(rows: Iterable[ResolvedPlugin]) -> frozenset[tuple[str, str]]:
    """(kind, name) pairs that more than one row offers."""
    counted = Counter((row.kind, row.name) for row in rows)
    return frozenset(key for key, count in counted.items() if count > 1)


def origin(row: ResolvedPlugin) -> str:
    """Where a row comes from, for people: `core-engine 0.1.0`, or its file or module."""
    return f"{row.distribution} {row.version}" if row.distribution else row.target.removeprefix("file:")


def label(row: ResolvedPlugin) -> str:
    """How a sentence names a plugin: kind, name and origin."""
    return f"{row.kind} plugin '{row.name}' ({origin(row)})"
