"""Every package of the source tree is installed by the distribution in whose folder it lies."""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from flit_core.wheel import make_wheel_in
from setuptools import find_packages

from core.version import __version__
from tests.layout import PACKAGES, PROJECTS, ROOT

COMPILED = (".cpp", ".h", ".so", "native_build_error.txt")


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
    checked = subprocess.run(
        [sys.executable, ROOT / ".ci" / "version.py", "--check"], stdout=subprocess.PIPE, text=True
    )
    assert checked.returncode == 0, f"run: python .ci/version.py\n{checked.stdout}"


def test_one_command_changes_the_version_everywhere(tmp_path: Path) -> None:
    for path in (*PROJECTS, ROOT / "core" / "version.py", ROOT / ".ci" / "version.py"):
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "deployment.md", tmp_path / "docs")
    command = [sys.executable, tmp_path / ".ci" / "version.py"]
    before = (ROOT / "pyproject.toml").read_text().count(f'{__version__}"')
    subprocess.run([*command, "9.8.7"], check=True, stdout=subprocess.DEVNULL)
    assert subprocess.run([*command, "--check"]).returncode == 0
    assert (tmp_path / "pyproject.toml").read_text().count('9.8.7"') == before > 20
    assert "image: core:9.8.7" in (tmp_path / "deploy" / "compose.yaml").read_text()
    (tmp_path / "core" / "version.py").write_text('__version__ = "9.8.8"\n')
    found = subprocess.run([*command, "--check"], stdout=subprocess.PIPE, text=True)
    assert found.returncode == 1 and found.stdout.count("is not at 9.8.8") > len(PROJECTS)


def test_every_package_is_typed_for_its_users() -> None:
    assert [name for name, folder in PACKAGES.items() if not (folder / "py.typed").exists()] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", PACKAGES)
def test_a_wheel_has_every_file_of_its_package(tmp_path: Path, name: str) -> None:
    """Modules, tables, templates and pages. The kernels' sources are of no use without the `setup.py` of a checkout."""
    package = PACKAGES[name]
    project = package.parent / "pyproject.toml"
    paths = [path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    files = {path.relative_to(package.parent).as_posix() for path in paths if not path.name.endswith(COMPILED)}
    if "flit" in tomllib.loads(project.read_text())["tool"]:
        with zipfile.ZipFile(make_wheel_in(project, tmp_path).file) as wheel:
            packed = set(wheel.namelist())
    else:
        packed = packed_by_setuptools(project, package, tmp_path)
    assert len(files) > 3 and files - packed == set()


def packed_by_setuptools(project: Path, package: Path, tmp_path: Path) -> set[str]:
    """The files that setuptools would put into a wheel. It writes next to its sources, so it gets a copy of them."""
    copy = tmp_path / "copy"
    shutil.copytree(package, copy / package.name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("pyproject.toml", "core_engine.py", "README.md", "LICENSE"):
        if (project.parent / name).exists():
            shutil.copy(project.parent / name, copy)
    (copy / "setup.py").write_text("from setuptools import setup\n\nsetup()\n")
    subprocess.run([sys.executable, "setup.py", "--quiet", "build_py", "--build-lib", "built"], cwd=copy, check=True)
    return {path.relative_to(copy / "built").as_posix() for path in (copy / "built").rglob("*") if path.is_file()}
