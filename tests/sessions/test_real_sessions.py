"""Sessions of `core serve` with a disk: a pin, a death of the engine, and a restart of the server."""

import signal
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.apis.test_real_server import Server, serving

pytestmark = pytest.mark.slow

TEXT = "The engine keeps what a conversation has computed, so that the next turn computes what is new alone. " * 4


def ask(server: Server, messages: list[dict[str, str]]) -> dict[str, Any]:
    body = {"messages": messages, "session": "mine", "max_tokens": 20, "temperature": 0.0}
    answer = httpx.post(f"{server.base}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    messages.append({"role": "assistant", "content": found["choices"][0]["message"]["content"]})
    messages.append({"role": "user", "content": "And then?"})
    return found


def session(server: Server, method: str = "GET", path: str = "") -> dict[str, Any]:
    answer = httpx.request(method, f"{server.base}/v1/sessions/mine{path}", timeout=60)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def engine_of(server: Server) -> psutil.Process:
    children = psutil.Process(server.process.pid).children(recursive=True)
    return next(each for each in children if "core.engine.process" in each.cmdline())


def pinned_again(server: Server) -> dict[str, Any]:
    """The session once its pin holds something; pins are renewed after an answer."""
    deadline = time.monotonic() + 20
    while not (found := session(server))["pinned_bytes"]:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found


def test_a_pin_a_death_and_a_restart(tmp_path: Path) -> None:
    arguments = ("--kv-offloading-disk-path", str(tmp_path / "kv"), "--enable-prompt-tokens-details")
    messages = [{"role": "user", "content": TEXT}]
    with serving(tmp_path / "log", *arguments) as server:
        ask(server, messages)
        pinned = session(server, "POST", "/pin")
        assert pinned["pinned"] and 0 < pinned["pinned_bytes"] <= pinned["kv_bytes"]["pool"]
        num_tokens = pinned["tokens"]
        engine_of(server).send_signal(signal.SIGKILL)
        again = ask(server, messages)
        assert again["usage"]["prompt_tokens"] > num_tokens
        assert len(pinned_again(server)["turns"]) == 2
    with serving(tmp_path / "log", *arguments) as server:
        kept = session(server)
        assert kept["pinned"] and len(kept["turns"]) == 2 and kept["kv_bytes"]["pool"] == 0 < kept["kv_bytes"]["disk"]
        last = ask(server, messages)
        assert last["usage"]["prompt_tokens_details"]["cached_tokens"] >= kept["tokens"] - 16
        assert pinned_again(server)["turns"][2]["kept_tokens"] >= kept["tokens"] - 1
        assert session(server, "DELETE", "/pin")["pinned_bytes"] == 0
