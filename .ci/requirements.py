"""`python .ci/requirements.py [--extra NAME] FOLDER...`: what the distributions of some folders need, one requirement a line.

Owns: reading their pyproject.toml. Never does: install; name a distribution of these folders, which the Makefile installs from
its folder. Called by: the Makefile, which so installs everything from outside in one call of pip.
"""

from __future__ import annotations

import argparse
import re
import tomllib
from pathlib import Path


def requirements(folders: list[str], extra: str | None) -> list[str]:
    """Return the dependencies of the distributions, or those of one extra, without repetitions and without each other."""
    projects = [
        tomllib.loads(Path(folder, "pyproject.toml").read_text(encoding="utf-8"))["project"] for folder in folders
    ]
    own = {_name(project["name"]) for project in projects}
    found: dict[str, None] = {}
    for project in projects:
        listed = project.get("dependencies", [])
        if extra is not None:
            listed = project.get("optional-dependencies", {}).get(extra, [])
        found |= {text: None for text in listed if _name(text) not in own}
    return list(found)


def _name(requirement: str) -> str:
    """The name of a distribution, as the index compares names."""
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    if name is None:
        raise SystemExit(f"requirement '{requirement}' does not begin with a name")
    return re.sub(r"[-_.]+", "-", name.group()).lower()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Print what some distributions need, one requirement a line.")
    parser.add_argument("--extra", help="the packages of this extra instead of the dependencies")
    parser.add_argument("folders", nargs="+", help="folders with a pyproject.toml")
    given = parser.parse_args()
    print(*requirements(given.folders, given.extra), sep="\n")
