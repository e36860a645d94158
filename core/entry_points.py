"""A fast reader of entry points: looks up the objects that distributions offer under a group, and imports them by name.

Owns: reading one group from the metadata of installed packages. Never does: know the kinds of plugins (`core.plugin.discovery`
does), or import a module before its name is requested. Called by: `core` for its public names, the commands, the loading of
manifests.

The metadata files are read here without importlib.metadata, because every command pays for the lookup: with 360 packages
installed, importing that library and walking the packages took 45 ms of processor time; reading the files here takes 6 ms.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True)
class Offer:
    """One entry point of an installed distribution.

    distribution: name of the distribution, in lower case with hyphens.
    version:      version of the distribution; empty for a source folder without one.
    name:         name of the entry point, as written in the metadata.
    target:       `MODULE` or `MODULE:OBJECT`.
    """

    distribution: str
    version: str
    name: str
    target: str


def offers(group: str, *distributions: str) -> list[Offer]:
    """Return the entry points of a group in every distribution on `sys.path`, or only in `distributions`.

    Only the files of those distributions are then read. Of a distribution that is on the path twice, the first counts.
    """
    found: list[Offer] = []
    for name, version, folder in _installed():
        if not distributions or name in distributions:
            for entry, target in _entries(folder, group):
                found.append(Offer(name, version, entry, target))
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


def _installed() -> Iterator[tuple[str, str, str]]:
    """Yield the name, version and metadata folder of every installed distribution."""
    seen: set[str] = set()
    for place in sys.path:
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
                yield name, version[0] if version else "", os.path.join(place, entry)


def _entries(folder: str, group: str) -> Iterator[tuple[str, str]]:
    """Yield the name and target of each entry point of a group in one metadata folder."""
    try:
        with open(os.path.join(folder, "entry_points.txt"), encoding="utf-8") as file:
            text = file.read()
    except OSError:
        return  # almost all packages have none
    if group not in text:
        return
    section = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            section = line.strip("[] ")
        elif section == group and "=" in line and not line.startswith(("#", ";")):
            name, _, target = line.partition("=")
            yield name.strip(), target.partition("[")[0].strip()
