"""Adapters of a server with several API processes: each of them knows what any of them loaded, also in the next engine."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from core import SharedTensors
from tests.apis.serving_processes import ROOT, announced
from tests.engine.adapting import adapted

PROMPT = [1, 2, 3, 4]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "tests.apis.serve_adapters", str(tmp_path)]
    tests = ROOT / "tests"
    paths = (str(tests / "engine"), str(tests), str(ROOT), os.environ.get("PYTHONPATH"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with announced(command, environment) as running:
        yield running


def asked(url: str, model: str, count: int = 4) -> tuple[int, str]:
    """Status and text of an answer on a connection of its own, so that any API process may give it."""
    body = {"model": model, "prompt": PROMPT, "max_tokens": count}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=30)
    return answer.status_code, answer.json()["choices"][0]["text"] if answer.status_code == 200 else ""


def text(weights: str, count: int = 4) -> str:
    return bytes(adapted(PROMPT, count, weights)).decode()


@pytest.mark.slow
def test_all_api_processes_and_the_next_engine_know_the_same_adapters(
    server: tuple[subprocess.Popen[str], str], tmp_path: Path
) -> None:
    process, url = server
    assert all(asked(url, name) == (200, text(name)) for name in ("sql", "fr", "sql", "fr"))
    (tmp_path / "new").write_text("new")
    load = {"lora_name": "extra", "lora_path": "new"}
    assert httpx.post(f"{url}/v1/load_lora_adapter", json=load, timeout=30).status_code == 200
    assert [asked(url, "extra") for _ in range(8)] == [(200, text("new"))] * 8
    (tmp_path / "new").write_text("newer")
    load["load_inplace"] = True  # type: ignore[assignment]
    assert httpx.post(f"{url}/v1/load_lora_adapter", json=load, timeout=30).status_code == 200
    assert [asked(url, "extra") for _ in range(8)] == [(200, text("newer"))] * 8
    assert httpx.post(f"{url}/v1/unload_lora_adapter", json={"lora_name": "sql"}, timeout=30).status_code == 200
    assert {asked(url, "sql")[0] for _ in range(8)} == {404}

    with SharedTensors({}) as shared:
        load = {"lora_name": "memory", "shared_memory": shared.name, "adapter_config": {}}  # type: ignore[dict-item]
        assert httpx.post(f"{url}/v1/load_lora_adapter", json=load, timeout=30).status_code == 200
    assert [asked(url, "memory") for _ in range(4)] == [(200, text("{}"))] * 4

    children = psutil.Process(process.pid).children()
    (engine,) = [child.pid for child in children if "core.engine.process" in child.cmdline()]
    stream = {"model": "extra", "prompt": PROMPT, "max_tokens": 60, "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=stream, timeout=60) as answer:
        lines = answer.iter_lines()
        first = next(line for line in lines if line)
        os.kill(engine, signal.SIGKILL)
        rest = "".join(lines)
    pieces = re.findall(r'"text":"([^"]*)"', first + rest)
    assert "".join(pieces) == text("newer", 60), "the stream goes on with its adapter in the next engine"
    end = time.monotonic() + 30
    while asked(url, "extra") != (200, text("newer")):
        assert time.monotonic() < end
    assert {asked(url, "sql")[0] for _ in range(8)} == {404}
    assert asked(url, "fr") == (200, text("fr"))
    assert asked(url, "memory") == (200, text("{}")), "the next engine has what was sent to the one before"
