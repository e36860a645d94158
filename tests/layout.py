"""Where the project's packages lie."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = (ROOT / "core", *sorted(ROOT.glob("plugins/*/core_*")))
PACKAGES = {path.name: path for path in FOLDERS if path.suffix != ".egg-info"}  # which a build leaves behind
"""Folder of each import package of the product."""
PROJECTS = (ROOT / "pyproject.toml", *sorted(ROOT.glob("plugins/*/pyproject.toml")))
"""The descriptions of all distributions."""
