"""Whether a package installed in editable mode still says what its source says.

Owns: the comparison of installed entry points with the source's pyproject.toml. Never does: import a plugin, or install.
Called by: manifest (a module that cannot be imported), the registry (`core plugins list`), `core.testing`.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlparse

import importlib_metadata

from core.plugin.kinds import KINDS, normalize


def editable_source(distribution: str) -> Path | None:
    """The folder that an editable installation points to, None for an ordinary one (PEP 610)."""
    try:
        text = importlib_metadata.distribution(distribution).read_text("direct_url.json")
        told = json.loads(text) if text else {}
    except (importlib_metadata.PackageNotFoundError, ValueError, OSError):
        return None
    if not isinstance(told, dict) or not (told.get("dir_info") or {}).get("editable"):
        return None
    return Path(unquote(urlparse(str(told.get("url", ""))).path))


def stale(distribution: str) -> str:
    """A sentence when the source offers other plugins or another version than what is installed, else an empty string."""
    source = editable_source(distribution) if distribution else None
    if source is None:
        return ""
    again = f"run `pip install -e {source}` again"
    if not source.is_dir():
        return f"it is installed in editable mode, but {source} is gone; {again} or uninstall {distribution}"
    try:
        project = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8")).get("project", {})
    except (OSError, ValueError):
        return ""
    installed = importlib_metadata.distribution(distribution)
    version = project.get("version")
    if version is not None and version != installed.version:
        return f"installed in editable mode as {installed.version}, but {source} is {version}; {again}"
    there, here = _offered(project.get("entry-points")), _installed(cast(importlib_metadata.Distribution, installed))
    if "entry-points" in project and there != here:
        changed = ", ".join(sorted(f"{group}:{name}" for group, name, _ in there ^ here))
        return f"the editable installation is stale: {source} has other entry points ({changed}); {again}"
    return ""


def _offered(groups: Any) -> set[tuple[str, str, str]]:
    known = {kind.group for kind in KINDS}
    found = groups if isinstance(groups, dict) else {}
    return {
        (group, normalize(name), str(target))
        for group, entries in found.items()
        if group in known and isinstance(entries, dict)
        for name, target in entries.items()
    }


def _installed(distribution: importlib_metadata.Distribution) -> set[tuple[str, str, str]]:
    known = {kind.group for kind in KINDS}
    return {(e.group, normalize(e.name), e.value) for e in distribution.entry_points if e.group in known}
