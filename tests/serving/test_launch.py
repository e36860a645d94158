"""The life of the server process: port, ready line, signals, the engine's death."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from core.api.config import ServerConfig
from core.api.errors import UserError
from core.serving.chat_template import read_template
from core.serving.sockets import bind, check_tls_files

ROOT = Path(__file__).parents[2]
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    processes: list[subprocess.Popen[str]] = []

    def begin(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.serving.serve_fake", *arguments]
        process = subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        processes.append(process)
        return process

    yield begin
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ready_url(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    assert process.stdout.readline() == "starting\n"
    line = process.stdout.readline()
    found = re.fullmatch(r"Serving fake-model at (http://127\.0\.0\.1:\d+) \(weights 0\.01 s, total .* s\)\n", line)
    assert found, line
    return found.group(1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_it_cleanly_without_torch(start: Start, number: signal.Signals) -> None:
    process = start("0")
    url = ready_url(process)
    assert httpx.get(f"{url}/health").status_code == 200
    process.send_signal(number)
    output, errors = process.communicate(timeout=10)
    assert process.returncode == 0, errors
    assert output.splitlines()[-1] == "False", "the server process imported torch"
    assert "Traceback" not in errors


def test_running_requests_may_end_after_a_signal(start: Start) -> None:
    process = start("0")
    url = ready_url(process)
    answers: list[str] = []

    def ask() -> None:
        answer = httpx.post(f"{url}/v1/completions", json={"prompt": "SLOW", "max_tokens": 40})
        answers.append(answer.json()["choices"][0]["finish_reason"])

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    thread.join(10)
    assert answers == ["stop"]
    assert process.wait(10) == 0


def test_a_second_signal_ends_running_streams_with_an_error(start: Start) -> None:
    process = start("0", "0.5")
    url = ready_url(process)
    body = {"prompt": "SLOW", "max_tokens": 40, "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=20) as answer:
        lines = answer.iter_lines()
        assert "Hello".startswith(json.loads(next(lines).removeprefix("data: "))["choices"][0]["text"])
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        last = [line for line in lines if line][-1]
    assert "error" in json.loads(last.removeprefix("data: "))
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 0
    assert time.monotonic() - begin < 3
    assert "Traceback" not in errors


def test_a_signal_during_the_start(start: Start) -> None:
    process = start("0", "0", "30")
    assert process.stdout is not None
    assert process.stdout.readline() == "starting\n"
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=5)
    assert process.returncode == 0
    assert "Traceback" not in errors


def test_engine_death(start: Start) -> None:
    process = start("0")
    url = ready_url(process)
    body = {"prompt": "DIE SLOW", "max_tokens": 40, "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=body) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert "error" in lines[-1] and "signal 9" in lines[-1]
    health = httpx.get(f"{url}/health")
    assert health.status_code == 503
    assert "signal 9" in health.json()["error"]["message"]
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 1
    assert "the engine died: The engine process ended with signal 9." in errors
    assert "Traceback" not in errors


def test_port_in_use(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        process = start(str(port))
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 2
    assert f"Port {port} on 127.0.0.1 is in use" in errors and "--port" in errors


def test_a_port_is_taken_from_the_moment_of_binding() -> None:
    with bind("127.0.0.1", 0) as first, pytest.raises(UserError, match="in use"):
        bind("127.0.0.1", first.getsockname()[1])


@pytest.mark.parametrize(
    ("host", "port", "words"), [("no.such.host.invalid", 8000, "--host"), ("192.0.2.1", 8000, "--host")]
)
def test_wrong_addresses(host: str, port: int, words: str) -> None:
    with pytest.raises(UserError, match=words):
        bind(host, port)


def test_files_are_checked_first(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--ssl-keyfile"):
        check_tls_files(ServerConfig(ssl_keyfile=str(tmp_path / "none.pem"), ssl_certfile=str(tmp_path)))
    other = tmp_path / "other.pem"
    other.write_text("no certificate")
    with pytest.raises(UserError, match="PEM"):
        check_tls_files(ServerConfig(ssl_certfile=str(other)))
    with pytest.raises(UserError, match="--chat-template"):
        read_template(str(tmp_path / "none.jinja"))
    file = tmp_path / "template.jinja"
    file.write_text("{{ messages }}")
    assert read_template(str(file)) == "{{ messages }}"
    assert read_template("{{ inline }}") == "{{ inline }}"
