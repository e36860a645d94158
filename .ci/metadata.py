"""`python .ci/metadata.py INTO`: write the metadata of every distribution of this checkout, and print a PYTHONPATH for them.

Owns: the folders `NAME-VERSION.dist-info` in INTO, by which a Python finds the plugins of a checkout without an installation.
Never does: install, compile or download anything. Called by: the Makefile, on machines that have no package index.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def write(folder: Path, into: Path) -> None:
    """Write the metadata of the distribution in `folder`."""
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    name = re.sub(r"[-_.]+", "_", project["name"]).lower()
    metadata = into / f"{name}-{project['version']}.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    lines = ["Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {project['version']}"]
    lines += [f"Requires-Dist: {text}" for text in project.get("dependencies", [])]
    (metadata / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (metadata / "entry_points.txt").write_text(_entry_points(project), encoding="utf-8")


def _entry_points(project: dict[str, Any]) -> str:
    """Return the text of `entry_points.txt`."""
    groups = dict(project.get("entry-points", {}))
    if "scripts" in project:
        groups["console_scripts"] = project["scripts"]
    lines: list[str] = []
    for group, entries in groups.items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in entries.items()), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Make the plugins of this checkout known without an installation.")
    parser.add_argument("into", type=Path, help="folder for the metadata")
    target = parser.parse_args().into.resolve()
    for old in target.glob("core_*.dist-info"):
        shutil.rmtree(old)
    folders = [ROOT, *sorted(project.parent for project in ROOT.glob("plugins/*/pyproject.toml"))]
    for place in folders:
        write(place, target)
    print(*(target, *folders), sep=os.pathsep)
