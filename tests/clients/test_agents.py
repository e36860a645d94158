"""Real agents, unmodified, against the real server with a scripted model: each reads a file, edits it and runs a command."""

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from core_apis.server.sockets import bind
from tests.clients.agents import AGENTS, DONE, NOTE, RIGHT, SHOWN, TASK, WRONG, Agent, filled

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / ".venv" / "clients" / "node_modules" / ".bin"
START_SECONDS = 60
AGENT_SECONDS = 200

pytestmark = pytest.mark.clients


@contextmanager
def scripted_server(script: list[tuple[str, str]], folder: Path) -> Iterator[str]:
    """The URL of a server whose bodies and prompts are kept in `folder`."""
    rows = folder / "script.json"
    rows.write_text(json.dumps(script))
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "tests.clients.serve_scripted", str(port), str(rows), str(folder)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    process = subprocess.Popen(command, cwd=ROOT, env=environment)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(process, url)
        yield url
    finally:
        process.terminate()
        process.wait(20)


def _wait(process: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        assert process.poll() is None and time.monotonic() < deadline, "the server did not start"
        try:
            httpx.get(f"{url}/health").raise_for_status()
            return
        except httpx.HTTPError:
            time.sleep(0.1)


def run(agent: Agent, url: str, home: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """The agent at its task, with a home of its own."""
    values = {"url": url, "task": TASK, "folder": str(folder), "home": str(home)}
    for name, text in agent.files.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(filled(text, **values))
    program = PROGRAMS / agent.program
    assert program.exists(), f"{program} is missing; run `make test-clients`"
    environment = {"PATH": os.environ["PATH"], "HOME": str(home)}
    for name, text in agent.environment.items():
        environment[name] = filled(text, **values)
    words = [filled(word, **values) for word in agent.words]
    return subprocess.run(
        [str(program), *words],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=AGENT_SECONDS,
        check=False,
    )


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_reads_edits_and_runs(name: str, tmp_path: Path) -> None:
    agent = AGENTS[name]
    folders = {part: tmp_path / part for part in ("home", "work", "seen")}
    for folder in folders.values():
        folder.mkdir()
    work = folders["work"]
    (work / NOTE).write_text(WRONG)
    with scripted_server(agent.script(work), folders["seen"]) as url:
        ended = run(agent, url, folders["home"], work)
    told = f"{ended.stdout}\n{ended.stderr}"
    assert ended.returncode == 0, told
    assert (work / NOTE).read_text() == RIGHT, told
    assert (work / "shown.txt").read_text().strip() == SHOWN, told
    assert DONE in told
    # The bodies of the task itself: some agents ask for titles and the like besides.
    prompts = [path.read_text() for path in sorted(folders["seen"].glob(f"*-{agent.kind}.txt"))]
    steps = [prompt for prompt in prompts if agent.calls[0][0] in prompt and TASK in prompt]
    assert len(steps) >= len(agent.script(work))
    assert _num_continued(steps) >= len(agent.calls)


def _num_continued(prompts: list[str]) -> int:
    """How many prompts begin with the one before them, so that the prefix cache has it."""
    pairs = itertools.pairwise(prompts)
    return sum(later.startswith(earlier) for earlier, later in pairs)
