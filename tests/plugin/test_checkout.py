"""A checkout on a machine with the packages that it needs, and without an installation of its own."""

import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from core.entry_points import offers
from core.plugin.discovery import discover
from tests.layout import ROOT

LISTED = """
import json
from core.entry_points import offers
from core.plugin.discovery import discover
rows = [[row.kind, row.name, row.target, row.distribution, row.version] for row in discover()]
print(json.dumps([rows, [[offer.name, offer.target] for offer in offers("core.commands")]]))
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installed packages, without those of this project."""
    folder = tmp_path_factory.mktemp("packages")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(("core_", "__editable__")) and entry.suffix != ".pth":
            (folder / entry.name).symlink_to(entry)
    return folder


def test_metadata_of_a_checkout_has_all_that_an_installation_has(tmp_path: Path, packages: Path) -> None:
    """Python without `site` sees no installed package."""
    write = [sys.executable, "-S", str(ROOT / ".ci" / "metadata.py"), str(tmp_path / "metadata")]
    for _ in range(2):  # again over its own output
        path = subprocess.run(write, capture_output=True, text=True, check=True).stdout.strip()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((path, str(packages)))}
    listed = [sys.executable, "-S", "-c", LISTED]
    done = subprocess.run(listed, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows, commands = json.loads(done.stdout)
    installed = [[row.kind, row.name, row.target, row.distribution, row.version] for row in discover()]
    assert len({row[3] for row in rows}) > 12 and rows == [row for row in installed if row[3].startswith("core-")]
    usual = [[offer.name, offer.target] for offer in offers("core.commands") if offer.distribution.startswith("core-")]
    assert sorted(commands) == sorted(usual)


@pytest.mark.slow
def test_the_tests_for_gpus_find_their_plugins_and_compile_their_kernels(tmp_path: Path, packages: Path) -> None:
    """`make gpu-test` where there is no GPU: all cases are collected, and only those that need none run."""
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    python.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(packages),
        "CUDA_VISIBLE_DEVICES": "",
        "TRITON_INTERPRET": "1",  # as a shell may have exported it
    }
    done = subprocess.run(["make", "gpu-test"], cwd=ROOT, env=environment, capture_output=True, text=True)
    said = re.search(r"(\d+) passed, (\d+) skipped", done.stdout)
    assert said is not None, done.stdout + done.stderr
    assert int(said[1]) == 1 and int(said[2]) > 50, "the first test says that no kernel is interpreted"
