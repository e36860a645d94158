"""An installed copy has every package of the source tree."""

from __future__ import annotations

import subprocess
import sys
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


def test_what_distributions_need_from_outside_is_listed_once_and_without_each_other(tmp_path: Path) -> None:
    """The Makefile installs these in one call of pip, and the distributions themselves from their folders."""
    projects = {
        "core": ('"torch>=2.11", "msgspec"', '"pytest>=8"'),
        "plugins": ('"Core_Engine==0.1.0", "msgspec", "xxhash"', '"core-engine[test]"'),
    }
    for folder, (needed, tests) in projects.items():
        (tmp_path / folder).mkdir()
        name = {"core": "core-engine", "plugins": "core-plugins"}[folder]
        text = f'[project]\nname = "{name}"\ndependencies = [{needed}]\n'
        text += f"[project.optional-dependencies]\ntest = [{tests}]\n"
        (tmp_path / folder / "pyproject.toml").write_text(text)

    def listed(*words: str) -> list[str]:
        command = [sys.executable, str(ROOT / ".ci" / "requirements.py"), *words, *projects]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.split()

    assert listed() == ["torch>=2.11", "msgspec", "xxhash"]
    assert listed("--extra", "test") == ["pytest>=8"]
