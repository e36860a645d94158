"""Other people's folders and packages named like ours, beside a script or on PYTHONPATH, in both kinds of installation."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.layout import PROJECTS

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import json
import plugins
import core, core_loaders
from core import SamplingParams
print(json.dumps([core.__file__, core_loaders.__file__, plugins.MINE, SamplingParams(max_tokens=3).max_tokens]))
"""
RAISES = "raise RuntimeError('this package is not the engine')\n"


@pytest.fixture
def beside(tmp_path):
    """A user's folder: bare folders `core` and `core_loaders`, a package `plugins` of their own, and a script."""
    folder = tmp_path / "project"
    for name in ("core/cli", "core_loaders/platforms", "plugins"):
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
    assert (Path(ours).parents[1], Path(built_in).parents[2]) == (ROOT, ROOT / "plugins")
    assert (mine, number) == (7, 3)


def test_the_command_finds_its_own_package_and_so_do_its_processes(shadow):
    words = "import sys, core_engine; sys.argv = ['core', 'plugins', 'list', '--json']; sys.exit(core_engine.main())"
    path = os.pathsep.join([str(shadow), str(ROOT)])
    done = run("-P", "-c", words, cwd=shadow, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    status = {row["name"]: row["status"] for row in json.loads(done.stdout)}
    assert status["cpu"] == "available"  # its probe ran in a process of its own


@pytest.mark.slow
def test_an_ordinary_installation(beside, tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    shutil.copytree(ROOT, source, ignore=skipped)
    distributions = [str(source), *(str(source / project.parent.relative_to(ROOT)) for project in PROJECTS[1:])]
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-compile", "--target", str(target))
    done = run("-m", "pip", "install", *options, *distributions, cwd=tmp_path, CC="/bin/false", CXX="/bin/false")
    assert done.returncode == 0, done.stderr[-2000:]
    done = run("script.py", cwd=beside, PYTHONPATH=str(target))
    assert done.returncode == 0, done.stderr
    ours, built_in, mine, _ = json.loads(done.stdout)
    assert (Path(ours).parents[1], Path(built_in).parents[1], mine) == (target, target, 7)


def skipped(folder, names):
    """What of the repository is no source of a distribution."""
    if folder == str(ROOT):
        return set(names) - {
            "core",
            "plugins",
            "core_engine.py",
            "pyproject.toml",
            "README.md",
            "LICENSE",
            "MANIFEST.in",
        }
    return {name for name in names if name in ("__pycache__", "build") or name.endswith(".so")}
