"""What the end of a process leaves behind, whichever way it ends: no processes, no files."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from fakes import TARGET, make_config, make_resolution, reference

from core.api.sampling_params import RequestOutputKind, SamplingParams
from core.processes import child_environment
from core_frontend.async_engine import AsyncEngine
from core_kit.case import FOLDER
from core_supervision.link.own_directory import Kind, OwnDirectory
from core_supervision.link.zmq_client import ZmqClient

PARENT = Path(__file__).with_name("left_alone.py")
GONE_S = 10.0


def until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + GONE_S
    while left := [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]:
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


def test_a_parent_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    environment = {**child_environment(), "TMPDIR": str(tmp_path)}
    parent = subprocess.Popen([sys.executable, PARENT], stdout=subprocess.PIPE, text=True, env=environment)
    assert parent.stdout is not None
    with parent.stdout as words:
        pids = [int(word) for word in words.readline().split()]
    assert len(pids) == 2
    assert list(tmp_path.iterdir())
    parent.kill()
    parent.wait(10)
    until_gone(pids)
    assert not list(tmp_path.iterdir())


async def test_an_engine_leaves_signals_to_its_owner() -> None:
    """A service manager sends SIGTERM to all processes at once: what runs has to end first."""
    config = make_config(options={"delay_s": 0.005})
    engine = await AsyncEngine.start(make_resolution(config), executor=TARGET)
    try:
        params = SamplingParams(max_tokens=20, output_kind=RequestOutputKind.FINAL_ONLY)
        outputs = engine.generate([1, 2], params, "one")
        waiting = asyncio.ensure_future(anext(outputs))
        for number in (signal.SIGTERM, signal.SIGINT):
            await asyncio.sleep(0.02)
            os.kill(engine.pid, number)
        output = await asyncio.wait_for(waiting, 20)
        assert output.outputs[0].token_ids == reference([1, 2], 20)
        await outputs.aclose()
    finally:
        await engine.close()


async def test_an_engine_that_hangs_is_no_reason_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ZmqClient.close, "__defaults__", (3600.0,))  # the grace that an engine has for ending by itself
    engine = await AsyncEngine.start(make_resolution(make_config()), executor=TARGET)
    os.kill(engine.pid, signal.SIGSTOP)
    closing = asyncio.ensure_future(engine.close())
    await asyncio.sleep(0.05)
    assert not closing.done()
    engine.kill()
    await closing
    assert engine.dead_error is None
    until_gone([engine.pid])


KILLED = """
import os, signal
from core_kit.case import FOLDER
from core_supervision.link.own_directory import OwnDirectory
directory = OwnDirectory(FOLDER)
path = directory.path
(path / "model").mkdir()
(path / "model" / "config.json").touch()
print(path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_files_of_a_killed_check_are_removed_by_the_next_one(tmp_path: Path) -> None:
    environment = {**child_environment(), "TMPDIR": str(tmp_path)}
    killed = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, env=environment, timeout=60)
    left = Path(killed.stdout.strip())
    assert left.is_dir() and left.parent == tmp_path
    stranger = tmp_path / "core-check-notes"
    stranger.mkdir()
    living = OwnDirectory(FOLDER, tmp_path)
    assert not left.exists()
    with OwnDirectory(FOLDER, tmp_path) as path:
        assert living.path.is_dir() and path.is_dir()
    living.remove()
    assert list(tmp_path.iterdir()) == [stranger]


def test_a_directory_that_nobody_needs_is_removed(tmp_path: Path) -> None:
    directory = OwnDirectory(Kind("mine-", "mine.lock"), tmp_path)
    assert list(tmp_path.iterdir()) == [directory.path]
    del directory
    assert not list(tmp_path.iterdir())
