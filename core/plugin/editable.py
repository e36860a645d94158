"""Detection of stale editable installations: packages whose installed metadata differs from their source.

Owns: the comparison of installed entry points with the source's pyproject.toml. Never does: import a plugin, or install.
Called by: manifest (a module that cannot be imported), the registry (`core plugins list`), `core_kit`.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlparse

import importlib_metadata

from core.plugin.kinds import KINDS, normalize

EntryPoint = tuple[str, str, str]
"""An entry point as (group, name, target)."""


def editable_source(distribution: str) -> Path | None:
    """Return the folder that an editable installation points to, None for an ordinary one (PEP 610)."""
    try:
        text = importlib_metadata.distribution(distribution).read_text("direct_url.json")
        told = json.loads(text) if text else {}
    except (importlib_metadata.PackageNotFoundError, ValueError, OSError):
        return None
    if not isinstance(told, dict):
        return None
    folder = told.get("dir_info") or {}
    if not folder.get("editable"):
        return None
    url = urlparse(str(told.get("url", "")))
    return Path(unquote(url.path))


def stale(distribution: str) -> str:
    """Return a sentence when the source has other plugins or another version than the installed metadata, else empty."""
    source = editable_source(distribution) if distribution else None
    if source is None:
        return ""
    again = f"run `pip install -e {source}` again"
    if not source.is_dir():
        return f"it is installed in editable mode, but {source} is gone; {again} or uninstall {distribution}"
    try:
        text = (source / "pyproject.toml").read_text(encoding="utf-8")
        project = tomllib.loads(text).get("project", {})
    except (OSError, ValueError):
        return ""
    installed = importlib_metadata.distribution(distribution)
    version = project.get("version")
    if version is not None and version != installed.version:
        return f"installed in editable mode as {installed.version}, but {source} is {version}; {again}"
    there = _offered(project.get("entry-points"))
    here = _installed(cast(importlib_metadata.Distribution, installed))
    if "entry-points" in project and there != here:
        differing = sorted(f"{group}:{name}" for group, name, _ in there ^ here)
        changed = ", ".join(differing)
        return f"the editable installation is stale: {source} has other entry points ({changed}); {again}"
    return ""


def _offered(groups: Any) -> set[EntryPoint]:
    """Return the plugins that a pyproject.toml offers. groups: its table of entry points, if it has one."""
    found: set[EntryPoint] = set()
    if not isinstance(groups, dict):
        return found
    for kind in KINDS:
        entries = groups.get(kind.group)
        if not isinstance(entries, dict):
            continue
        for name, target in entries.items():
            found.add((kind.group, normalize(name), str(target)))
    return found


def _installed(distribution: importlib_metadata.Distribution) -> set[EntryPoint]:
    """Return the plugins that an installed package offers, by its metadata."""
    known = {kind.group for kind in KINDS}
    found: set[EntryPoint] = set()
    for entry in distribution.entry_points:
        if entry.group in known:
            found.add((entry.group, normalize(entry.name), entry.value))
    return found
