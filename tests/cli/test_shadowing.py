"""Other people's folders and packages named like ours, beside a script or on PYTHONPATH, in both kinds of installation."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import core

ROOT = Path(core.__file__).resolve().parents[1]
SCRIPT = """
import json
import plugins
import core, core_plugins
from core import SamplingParams
print(json.dumps([core.__file__, core_plugins.__file__, plugins.MINE, SamplingParams(max_tokens=3).max_tokens]))
"""
RAISES = "raise RuntimeError('this package is not the engine')\n"


@pytest.fixture
def beside(tmp_path):
    """A user's folder: bare folders `core` and `core_plugins`, a package `plugins` of their own, and a script."""
    folder = tmp_path / "project"
    for name in ("plugins/commands/core_commands/cli", "plugins/platforms/core_platforms", "plugins"):
        (folder / name).mkdir(parents=True)
    (folder / "plugins/__init__.py").write_text("MINE = 7\n")
    (folder / "script.py").write_text(SCRIPT)
    return folder


@pytest.fixture
def shadow(tmp_path):
    """A folder for PYTHONPATH with regular packages of our names."""
    folder = tmp_path / "shadow"
    for name in ("core", "plugins"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(RAISES)
    return folder


def run(*words, cwd, **environment):
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_bare_folders_beside_a_script_hide_nothing(beside):
    done = run("script.py", cwd=beside)
    assert done.returncode == 0, done.stderr
    ours, built_in, mine, number = json.loads(done.stdout)
    assert (Path(ours).parents[1], Path(built_in).parents[1]) == (ROOT, ROOT)
    assert (mine, number) == (7, 3)


def test_the_command_finds_its_own_package_and_so_do_its_processes(shadow):
    words = "import sys, core_engine; sys.argv = ['core', 'plugins', 'list', '--json']; sys.exit(core_engine.main())"
    path = os.pathsep.join([str(shadow), str(ROOT)])
    done = run("-P", "-c", words, cwd=shadow, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    status = {row["name"]: row["status"] for row in json.loads(done.stdout)}
    assert status["cpu"] == "available"  # its probe ran in a process of its own


def test_an_ordinary_installation(beside, tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    skipped = shutil.ignore_patterns("__pycache__", "*.so")
    for name in ("core", "core_plugins"):
        shutil.copytree(ROOT / name, source / name, ignore=skipped)
    for name in ("core_engine.py", "setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    install = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        str(target),
        str(source),
    ]
    done = run(*install, cwd=tmp_path, CC="/bin/false", CXX="/bin/false")
    assert done.returncode == 0, done.stderr[-2000:]
    done = run("script.py", cwd=beside, PYTHONPATH=str(target))
    assert done.returncode == 0, done.stderr
    ours, built_in, mine, _ = json.loads(done.stdout)
    assert (Path(ours).parents[1], Path(built_in).parents[1], mine) == (target, target, 7)
