"""The engine's own distributions: the plugins that each provides, and the message about one that is not installed.

Owns: the rows of the table `distributions.txt`, and the comparison of versions. Never does: install, or import a plugin.
Called by: the registry (names that no installed package provides, rows of another version), ranking (kinds without a plugin),
requirements, the executor's early import.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import importlib_metadata

from core.api.config import ResolvedPlugin
from core.plugin.discovery import ENGINE, plugins_of
from core.plugin.kinds import normalize
from core.version import __version__

FILE = Path(__file__).with_name("distributions.txt")


@dataclass(frozen=True, slots=True)
class Distribution:
    """One row of `distributions.txt`: plugins of one kind in one distribution. kind, names: empty where it provides none."""

    name: str
    kind: str
    names: frozenset[str]


@functools.cache
def table() -> tuple[Distribution, ...]:
    """Return all rows in the order of the file, which is read once per process."""
    rows: list[Distribution] = []
    for line in FILE.read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        name, kind, names = (part.strip() for part in line.split("|"))
        rows.append(Distribution(name, kind, frozenset(map(normalize, names.split()))))
    return tuple(rows)


@functools.cache
def _own_names() -> frozenset[str]:
    return frozenset({normalize(ENGINE), *(normalize(row.name) for row in table())})


def is_own(distribution: str) -> bool:
    """Whether a distribution is the engine's own, so that its plugins are used without being named."""
    return normalize(distribution) in _own_names()


def own_row(kind: str) -> ResolvedPlugin | None:
    """Return the first plugin of a kind among the engine's own, the usual one; None when there is none.

    Only the distributions that provide the kind are looked up: 1 ms, against 15 ms for a search of all installed ones.
    """
    names = dict.fromkeys([ENGINE, *(row.name for row in table() if row.kind == kind)])
    found = [row for name in names for row in plugins_of(name) if row.kind == kind]
    return found[0] if found else None


def missing(kind: str, name: str) -> str:
    """Return a sentence when `name` is one of our plugins and its distribution is not installed; empty otherwise.

    name: the name as `core.plugin.words` reads it, with or without a distribution.
    """
    owner, _, plain = name.rpartition(":")
    for row in table():
        is_meant = not owner or normalize(owner) == normalize(row.name)
        if row.kind == kind and is_meant and normalize(plain) in row.names and _installed(row.name) is None:
            return f"it comes with the package {row.name}, which is not installed; run `{_pip(row.name)}`."
    return ""


def absent(kind: str) -> str:
    """Say which packages to install for a kind without any plugin; empty when none of our packages provides the kind."""
    names = {row.name: None for row in table() if row.kind == kind and _installed(row.name) is None}
    if not names:
        return ""
    commands = " or ".join(f"`{_pip(name)}`" for name in names)
    return f"No {kind} plugin is installed; run {commands}."


def mismatch(distribution: str, version: str) -> str:
    """Return a clause when one of our distributions has another version than the engine, else an empty string."""
    if distribution == ENGINE or version == __version__ or not is_own(distribution):
        return ""
    return f"{distribution} is {version}, but {ENGINE} is {__version__}; run `{_pip(distribution)}`"


def _installed(distribution: str) -> str | None:
    """Return the installed version of a distribution, None when it is not installed."""
    try:
        return importlib_metadata.version(distribution)
    except importlib_metadata.PackageNotFoundError:
        return None


def _pip(distribution: str) -> str:
    return f"pip install {distribution}=={__version__}"
