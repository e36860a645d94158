"""Objects that distributions offer under a group of entry points, found by name and imported.

Owns: reading one group from the metadata of installed packages. Never does: know the kinds of plugins (`core.plugin.discovery`
does), or import a module before its name is asked for. Called by: `core` for its public names, the commands, the loading of
manifests.

Files are read here without importlib.metadata: every command pays for this, and the import of that library and its walk over
360 packages took 45 ms of a processor, these files 6.
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
    """One entry point.

    distribution: name of the distribution that has it, in lower case with hyphens.
    version:      its version; empty for a source folder without one.
    name:         as written there.
    target:       `MODULE` or `MODULE:OBJECT`.
    """

    distribution: str
    version: str
    name: str
    target: str


def offers(group: str, *distributions: str) -> list[Offer]:
    """The entry points of a group in every distribution on `sys.path`, or in the named ones alone, whose files are read then.

    A distribution that is there twice counts once, the first.
    """
    found: list[Offer] = []
    for name, version, folder in _installed():
        if not distributions or name in distributions:
            for entry, target in _entries(folder, group):
                found.append(Offer(name, version, entry, target))
    return found


def target_of(group: str, name: str, usual: str) -> str:
    """The target of an entry point, empty when no distribution has it.

    usual: distribution whose entry point is preferred to one of that name elsewhere.
    """
    for found in (offers(group, usual), offers(group)):
        for offer in found:
            if offer.name == name:
                return offer.target
    return ""


def load(group: str, name: str, usual: str) -> Any:
    """Import the object of an entry point; None when no distribution has it. Raises what the import raises."""
    target = target_of(group, name, usual)
    return named(target) if target else None


def named(target: str) -> Any:
    """Import `MODULE` or `MODULE:OBJECT`."""
    module, _, attributes = target.partition(":")
    found: Any = import_module(module.strip())
    for attribute in attributes.split("."):
        if attribute.strip():
            found = getattr(found, attribute.strip())
    return found


def _installed() -> Iterator[tuple[str, str, str]]:
    """Name, version and folder of metadata of every installed distribution."""
    seen: set[str] = set()
    for place in sys.path:
        try:
            entries = os.listdir(place or os.curdir)
        except OSError:
            continue  # a path may name an archive, or nothing
        for entry in entries:
            stem, _, suffix = entry.rpartition(".")
            name, *version = stem.split("-")
            name = name.lower().replace("_", "-").replace(".", "-")
            if suffix in ("dist-info", "egg-info") and name not in seen:
                seen.add(name)
                yield name, version[0] if version else "", os.path.join(place, entry)


def _entries(folder: str, group: str) -> Iterator[tuple[str, str]]:
    """Name and target of the entry points of a group in one folder of metadata."""
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
