"""The reader of entry points: looks up the objects that distributions offer under a group, and imports them by name.

Owns: reading the metadata of installed packages. Never does: know the kinds of plugins (`core.plugin.discovery` does), or
import a module before its name is requested. Called by: `core` for its public names, the commands, the discovery and loading
of plugins.

The metadata files are read here without importlib.metadata, because every command pays for the lookup: with 360 packages
installed, importing that library and walking the packages took 45 ms of processor time; reading the files here takes 6 ms.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True)
class Offer:
    """One entry point of an installed distribution.

    distribution: name of the distribution, in lower case with hyphens.
    version:      version of the distribution.
    name:         name of the entry point, as written in the metadata.
    target:       `MODULE` or `MODULE:OBJECT`.
    group:        group of the entry point.
    """

    distribution: str
    version: str
    name: str
    target: str
    group: str = ""


def offers(group: str, *distributions: str) -> list[Offer]:
    """Return the entry points of a group in every distribution on `sys.path`, or only in `distributions`."""
    return offers_of((group,), distributions)


def offers_of(
    groups: Collection[str], distributions: Collection[str] = (), path: Sequence[str] | None = None
) -> list[Offer]:
    """Return the entry points of some groups in every distribution, or only in `distributions`.

    Only the files of those distributions are then read. Of a distribution that is on the path twice, the first counts.
    path: directories to search, `sys.path` when None.
    """
    found: list[Offer] = []
    for name, version, folder in _installed(sys.path if path is None else path):
        if not distributions or name in distributions:
            for group, entry, target in _entries(folder, groups):
                found.append(Offer(name, version, entry, target, group))
    return found


def target_of(group: str, name: str, usual: str) -> str:
    """Return the target of an entry point, empty when no distribution has it.

    usual: distribution whose entry point is preferred to one of the same name in another distribution.
    """
    for named_alone in ((usual,), ()):
        for offer in offers(group, *named_alone):
            if offer.name == name:
                return offer.target
    return ""


def load(group: str, name: str, usual: str) -> Any:
    """Import the object of an entry point; None when no distribution has it. Raises what the import raises."""
    target = target_of(group, name, usual)
    return named(target) if target else None


def named(target: str) -> Any:
    """Import the target `MODULE` or `MODULE:OBJECT` and return it. Raises what the import raises."""
    module, _, attributes = target.partition(":")
    found: Any = import_module(module.strip())
    for attribute in attributes.split("."):
        if attribute.strip():
            found = getattr(found, attribute.strip())
    return found


def _installed(path: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the name, version and metadata folder of every distribution."""
    seen: set[str] = set()
    for place in path:
        try:
            entries = os.listdir(place or os.curdir)
        except OSError:
            continue  # A path may name an archive, or a folder that does not exist.
        for entry in entries:
            stem, _, suffix = entry.rpartition(".")
            name, *version = stem.split("-")
            name = name.lower().replace("_", "-").replace(".", "-")
            if suffix in ("dist-info", "egg-info") and name not in seen:
                seen.add(name)
                folder = os.path.join(place, entry)
                yield name, version[0] if version else _version(folder), folder


def _version(folder: str) -> str:
    """Return the version of a source folder's metadata, whose name has none; empty when it cannot be read."""
    try:
        with open(os.path.join(folder, "PKG-INFO"), encoding="utf-8") as file:
            return next((line[8:].strip() for line in file if line.startswith("Version:")), "")
    except OSError:
        return ""


def _entries(folder: str, groups: Collection[str]) -> Iterator[tuple[str, str, str]]:
    """Yield group, name and target of each entry point of some groups in one metadata folder."""
    try:
        with open(os.path.join(folder, "entry_points.txt"), encoding="utf-8") as file:
            text = file.read()
    except OSError:
        return  # almost all packages have none
    section = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            section = line.strip("[] ")
        elif section in groups and "=" in line and not line.startswith(("#", ";")):
            name, _, target = line.partition("=")
            yield section, name.strip(), target.partition("[")[0].strip()
