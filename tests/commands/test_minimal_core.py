"""The core without any other distribution of ours: its commands work, and all of it can be imported."""

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from core.version import __version__

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """alone(*words) -> the finished command, where nothing but the core and what it depends on can be imported or found."""
    folder = tmp_path_factory.mktemp("alone")
    for name in dependencies():
        for path in top_level(name):
            folder.joinpath(path.name).symlink_to(path)
    info = folder / "core_engine-0.1.0.dist-info"
    info.mkdir()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: core-engine\nVersion: {__version__}\n")
    lines: list[str] = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))
    for name in ("core", "core_engine.py"):
        folder.joinpath(name).symlink_to(ROOT / name)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        program = "import sys, core_engine; sys.argv[0] = 'core'; sys.exit(core_engine.main())"
        return python("-c", program, *words)

    def python(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-S", "-P", *words],
            env={**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "100"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    run.python = python  # type: ignore[attr-defined]
    return run


def dependencies() -> set[str]:
    """Names of the distributions that the core depends on, and of those that they depend on in turn."""
    found: set[str] = set()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    todo = list(project["dependencies"])
    while todo:
        requirement = Requirement(todo.pop())
        is_meant = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if is_meant and requirement.name not in found:
            found.add(requirement.name)
            todo += metadata.requires(requirement.name) or []
    return found


def top_level(name: str) -> set[Path]:
    """Files and folders of a distribution right under its folder of installation."""
    distribution = metadata.distribution(name)
    names = {file.parts[0] for file in distribution.files or () if file.parts[0] != ".."}
    return {Path(str(distribution.locate_file(part))) for part in names if part != "__pycache__"}


def test_a_command_of_another_distribution_is_missed_by_its_name(alone: Any) -> None:
    done = alone("bench", "--help")
    assert done.returncode == 2
    sentence = r"core: core bench: this command comes with (\S+), and it is not installed here\."
    assert re.fullmatch(sentence + r" Install it with `pip install \1`\.\n", done.stderr)
    two_words = alone("plugins", "show", "cpu")
    assert two_words.returncode == 2 and two_words.stderr.startswith(
        "core: core plugins show: this command comes with "
    )


def test_help_and_version(alone: Any) -> None:
    version = alone("--version")
    assert (version.returncode, version.stdout) == (0, f"core {__version__}\n")
    done = alone("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "  plugins list " in done.stdout and "config" not in done.stdout
    assert "serve [MODEL]" not in done.stdout
    unknown = alone("srve")
    assert unknown.returncode == 2 and "Did you mean 'serve'?" in unknown.stderr
    group = alone("plugins", "--help")
    assert group.returncode == 0 and "  plugins list" in group.stdout and "plugins show" not in group.stdout


def test_plugins_are_listed(alone: Any) -> None:
    done = alone("plugins", "list", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    rows = [row for row in json.loads(done.stdout) if row["distribution"] == "core-engine"]
    assert {(row["kind"], row["name"], row["status"]) for row in rows} == {
        ("command", "plugins.list", "available"),
    }


def test_arguments_of_the_core_are_declared(alone: Any) -> None:
    done = alone.python("-c", "from core.args.schema import schema; print(*schema().fields)")
    assert (done.returncode, done.stderr) == (0, "")
    names = done.stdout.split()
    assert "max_num_seqs" in names and "device" in names and "host" not in names


def test_every_module_of_the_core_is_imported_without_torch(alone: Any) -> None:
    names = []
    for path in sorted((ROOT / "core").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if not name.endswith("__main__"):
            names.append(name)
    program = (
        f"import importlib, sys; [importlib.import_module(name) for name in {names}]; print('torch' in sys.modules)"
    )
    done = alone.python("-c", program)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


def test_a_public_name_of_another_distribution_says_what_to_install(alone: Any) -> None:
    done = alone.python("-c", "from core import LLM")
    assert done.returncode == 1 and "pip install core-engine-frontend" in done.stderr
