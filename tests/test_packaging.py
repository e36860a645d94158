"""Every package of the source tree is installed by the distribution in whose folder it lies."""

import tomllib

from setuptools import find_packages

from tests.layout import PACKAGES, PROJECTS, ROOT


def test_every_folder_with_modules_is_installed() -> None:
    for project in PROJECTS:
        tool = tomllib.loads(project.read_text())["tool"]
        if "flit" in tool:
            name = tool["flit"]["module"]["name"]
            assert PACKAGES[name].parent == project.parent
            continue
        found = tool["setuptools"]["packages"]["find"]
        installed = set(find_packages(str(project.parent), include=found["include"]))
        (top,) = [path for path in PACKAGES.values() if path.parent == project.parent]
        folders = {".".join(path.parent.relative_to(project.parent).parts) for path in top.rglob("*.py")}
        assert folders == installed


def test_every_distribution_has_the_engines_version() -> None:
    versions = {tomllib.loads(project.read_text())["project"]["version"] for project in PROJECTS}
    assert len(versions) == 1 and len(PROJECTS) == len(PACKAGES) > 20
    assert (ROOT / "core" / "version.py").read_text().count(versions.pop()) == 1
