"""Discovery of installed plugins from package metadata, without importing anything.

Owns: the rows that describe entry points. Never does: import a plugin. Called by: the registry; the composition of an engine,
for entry-point groups that are not kinds of plugins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from core.api.config import ResolvedPlugin
from core.api.errors import PluginError
from core.entry_points import Offer, offers, offers_of
from core.plugin.kinds import KINDS, normalize

ENGINE = "core-engine"
"""Name of the engine's main distribution. Its plugins are used without being named by the user."""


def discover(path: Sequence[str] | None = None) -> tuple[ResolvedPlugin, ...]:
    """Return every entry point of every kind's group, sorted by kind, name and distribution.

    path: directories to search, `sys.path` when None. Of a distribution that is on the path twice, the first counts.
    """
    order = {kind.name: index for index, kind in enumerate(KINDS)}

    def place(row: ResolvedPlugin) -> tuple[int, str, str]:
        return order[row.kind], row.name, row.distribution

    return tuple(sorted(_rows((), path), key=place))


def plugins_of(distribution: str) -> list[ResolvedPlugin]:
    """Return the plugins of one distribution by its name; none when it is not installed."""
    return _rows((distribution,))


def entry_points_of(group: str) -> list[tuple[Offer, str]]:
    """Return the entry points of a group that is not a kind of plugin, each with its distribution's name and version.

    They are sorted by name. Raises PluginError when two have the same name.
    """
    found: dict[str, tuple[Offer, str]] = {}
    for offer in offers(group):
        source = f"{offer.distribution} {offer.version}"
        if offer.name in found:
            _, other = found[offer.name]
            raise PluginError(
                f"'{offer.name}' of the group {group} is offered by {other} and by {source}; uninstall one."
            )
        found[offer.name] = (offer, source)
    return [found[name] for name in sorted(found)]


def _rows(distributions: Collection[str], path: Sequence[str] | None = None) -> list[ResolvedPlugin]:
    """Return one row for each plugin that some distributions offer, or all of them when empty."""
    kinds = {kind.group: kind.name for kind in KINDS}
    rows: list[ResolvedPlugin] = []
    for offer in offers_of(kinds, distributions, path):
        rows.append(
            ResolvedPlugin(
                kind=kinds[offer.group],
                name=normalize(offer.name),
                target=offer.target,
                distribution=offer.distribution,
                version=offer.version,
            )
        )
    return rows


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
