"""The tutorial, followed literally: files are written, commands run, and what they should print is printed."""

import os
import re
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "plugins" / "tutorial.md"
BLOCK = re.compile(r"(?:^`(?P<file>[^`\n]+)`:\n\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.M | re.S)


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A new virtual environment that sees this engine and the libraries of the running one."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    (site / "parent.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    programs = {"core": "from core.commands.main import main", "pip": "", "pytest": ""}
    for name, start in programs.items():
        code = f"{start}\nimport sys\nsys.exit(main())" if start else ""
        script = f"#!{python} -P\n{code}\n" if start else f'#!/bin/sh\nexec {python} -P -m {name} "$@"\n'
        (folder / "bin" / name).write_text(script)
        (folder / "bin" / name).chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "VIRTUAL_ENV": str(folder),
        "PYTHONPATH": str(ROOT),
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads it the other way round: 0 means no isolation
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "OMP_NUM_THREADS": "2",
    }


def blocks():
    text = TUTORIAL.read_text(encoding="utf-8")
    return [(found["file"], found["kind"], found["text"]) for found in BLOCK.finditer(text)]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_tutorial_works_as_written(tmp_path, environment):
    printed, commands = "", 0
    for file, kind, text in blocks():
        if file is not None:
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).write_text(text, encoding="utf-8")
        elif kind == "bash":
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", text],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=400,
                check=False,
            )
            printed, commands = done.stdout + done.stderr, commands + 1
            assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        elif kind == "text":
            for line in text.splitlines():
                wanted = re.sub(r"\s+", " ", line.strip())
                assert wanted in re.sub(r"[^\S\n]+", " ", printed), f"'{line}' is not in:\n{printed}"
    assert commands >= 9


def test_every_block_of_the_tutorial_is_followed():
    found = blocks()
    assert len(found) == TUTORIAL.read_text(encoding="utf-8").count("\n```") // 2
    for file, kind, _ in found:
        assert kind in ("bash", "text") or file is not None, "a block of code that no file holds"
