"""An installed copy has every package of the source tree."""

from __future__ import annotations

import tomllib
from pathlib import Path

from setuptools import find_packages

ROOT = Path(__file__).parents[1]


def test_every_folder_with_modules_is_installed() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    found = settings["tool"]["setuptools"]["packages"]["find"]
    installed = set(find_packages(str(ROOT), include=found["include"], exclude=found["exclude"]))
    folders: set[str] = set()
    for top in ("core", "core_plugins"):
        for module in (ROOT / top).rglob("*.py"):
            folder = module.parent.relative_to(ROOT)
            if "templates" not in folder.parts:
                folders.add(".".join(folder.parts))
    assert folders == installed
