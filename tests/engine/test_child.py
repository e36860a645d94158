"""The engine process as its parent sees it: output that cannot be written, and what killed processes leave."""

import asyncio
import errno
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from core.processes import child_environment
from core_supervision.child import EngineProcess
from core_supervision.link.socket_directory import SocketDirectory


class FullDisk(io.TextIOBase):
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_a_full_disk_under_the_log_does_not_stop_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "print('x' * 79 + '\\n' * 10, flush=True)\nfor i in range(4000): print('y' * 79)\nprint('the last words')"
    monkeypatch.setattr(sys, "stderr", FullDisk())
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE)
    engine = EngineProcess(process, SocketDirectory())

    async def ended() -> None:
        await asyncio.wait_for(engine.wait(), 20)

    try:
        asyncio.run(ended())
        assert "exited with code 0" in engine.obituary()
        assert "the last words" in engine.obituary()
    finally:
        engine.discard()


KILLED = """
import os, signal
from core_supervision.link.socket_directory import SocketDirectory
directory = SocketDirectory()
(directory.path / "engine.sock").touch()
print(directory.path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_directory_of_a_killed_process_is_removed_by_the_next_start(base: Path) -> None:
    living = SocketDirectory()
    killed = subprocess.run(
        [sys.executable, "-c", KILLED], capture_output=True, text=True, timeout=20, env=child_environment()
    )
    left = Path(killed.stdout.strip())
    assert left.is_dir()
    assert left.parent == base
    assert living.path.is_dir()
    following = SocketDirectory()
    assert not left.exists()
    assert living.path.is_dir()
    assert (following.path / "engine.lock").exists()
    for directory in (living, following):
        directory.remove()
        directory.remove()
    assert not list(base.iterdir())


def test_what_is_not_certainly_ours_is_left_alone(base: Path) -> None:
    elsewhere = base / "elsewhere"
    for path in (base / "core-empty", base / "core-data", base / "core-fifo", base / "core-link", elsewhere):
        path.mkdir()
    (base / "core-data" / "engine.lock").touch()
    (base / "core-data" / "thesis.txt").touch()
    os.mkfifo(base / "core-fifo" / "engine.lock")
    (elsewhere / "engine.lock").touch()
    (base / "core-symlink").symlink_to(elsewhere)
    (base / "core-link" / "engine.lock").symlink_to(elsewhere / "engine.lock")
    (base / "core-dump").write_text("a file")
    before = sorted(base.rglob("*"))
    SocketDirectory().remove()
    assert sorted(base.rglob("*")) == before
