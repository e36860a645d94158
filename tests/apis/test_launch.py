"""The life of the server process: port, ready line, signals, the engine's death."""

import asyncio
import fcntl
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest

from core.api.errors import UserError
from core_apis.prepare.chat_template import read_template
from core_apis.server.lifetime import on_loop_error
from core_apis.server.sockets import bind, check_tls_files
from core_config.served.server_config import ServerConfig
from tests.apis.serving_processes import ROOT, SERVE, Start, fake_server, free_port, ready_url, shells


@pytest.fixture
def shell() -> Iterator[Start]:
    """Starts a shell command, which ends with the test."""
    with shells() as begin:
        yield begin


@pytest.fixture
def start(shell: Start) -> Start:
    """Starts the fake server."""
    return partial(fake_server, shell)


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


STARTING = re.compile(r"\S+ INFO server core: Starting version \S+\n")
"""All that is said before anything else happens."""
LINE = re.compile(r"\d\d:\d\d:\d\d\.\d{3} (INFO|WARNING) server [\w.]+: ")


def test_all_lines_of_the_log_have_one_form(start: Start) -> None:
    process = start("0")
    url = ready_url(process)
    assert httpx.get(f"{url}/health").status_code == 200
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=10)
    lines = errors.splitlines()
    assert any("uvicorn.access: " in line and '"GET /health HTTP/1.1" 200' in line for line in lines), errors
    assert all(LINE.match(line) for line in lines), errors


def test_grammars_are_prepared_once_it_serves(start: Start) -> None:
    process = start("0")
    ready_url(process)
    assert process.stdout is not None
    assert process.stdout.readline() == "warming\n"


def test_running_requests_may_end_after_a_signal(start: Start) -> None:
    process = start("0")
    url = ready_url(process)
    answers: list[str] = []

    def ask() -> None:
        answer = httpx.post(f"{url}/v1/completions", json={"prompt": "SLOW", "max_tokens": 40})
        answers.append(answer.json()["choices"][0]["finish_reason"])

    thread = threading.Thread(target=ask)
    thread.start()
    deadline = time.monotonic() + 10
    while 'num_requests_running{model_name="fake-model"} 1.0' not in httpx.get(f"{url}/metrics").text:
        assert time.monotonic() < deadline
        time.sleep(0.01)
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
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        last = [line for line in lines if line][-1]
    assert "error" in json.loads(last.removeprefix("data: "))
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 0
    assert "Traceback" not in errors


AT_THE_SENDING = """
import asyncio, os, sys
from unittest.mock import MagicMock
from core.commands.main import main
from core_supervision.child import EngineProcess
from core_supervision.owned_engine import OwnedEngine

async def send(self, parts):
    os.write(1, " ".join(sys.modules).encode())
    os._exit(0)

child = MagicMock(address="ipc://nobody", files=None, configured=asyncio.Event(), wait=asyncio.Event().wait)
EngineProcess.spawn = lambda *arguments: child
OwnedEngine._send_greeting = send
main(["serve", sys.argv[1], "--port", "0"])
"""


def test_the_engine_gets_its_configuration_before_anything_is_imported_that_can_wait(tiny_llama: Path) -> None:
    command = [sys.executable, "-c", AT_THE_SENDING, str(tiny_llama)]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=60)
    modules = done.stdout.split()
    assert "core_supervision.owned_engine" in modules, done.stderr
    late = (
        "core_formats.row_files",
        "core_formats.selection",
        "core_grammars.compiler",
        "core_grammars.spec",
        "core_apis.app",
        "fastapi",
        "torch",
    )
    assert not [module for module in modules if module.startswith(late)]


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


def until_healthy(port: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < deadline:
        try:
            assert httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
            return
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError(f"no server; exit code {process.poll()}")


@pytest.mark.parametrize("redirection", ["<&- >&- 2>&-", ">/dev/full 2>/dev/full"])
def test_output_that_is_closed_or_full_from_the_start(shell: Start, redirection: str) -> None:
    port = free_port()
    process = shell(f"exec {SERVE} {port} {redirection}")
    until_healthy(port, process)
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    assert (output, errors) == ("", "")


def test_a_log_that_nobody_reads_stops_no_answer(start: Start) -> None:
    process = start("0")
    url = ready_url(process)
    assert process.stdout is not None
    room = fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 4096)
    with httpx.Client(timeout=10) as client:
        for _ in range(3):
            assert client.get(f"{url}/version?{'x' * room}").status_code == 200
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0


def test_a_flood_of_errors_is_one_traceback(start: Start) -> None:
    process = start("0")
    port = int(ready_url(process).rpartition(":")[2])
    for _ in range(20):  # clients that leave in mid-body
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n{")
            time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=20)
    assert errors.count("Traceback") <= 1


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("ulimit -n 24", "may open 24 files at once; .* `ulimit -n 4096`"),
        ("ulimit -s 256", "256 KB; .* `ulimit -s 8192`"),
    ],
)
def test_limits_that_are_too_low_are_refused(shell: Start, limit: str, words: str) -> None:
    process = shell(f"{limit}; exec {SERVE} 0")
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 2
    assert re.fullmatch(f"core: .*{words}.*\n", errors), errors
    assert "starting" not in output


def test_few_files_are_told_with_the_connections_that_they_allow(shell: Start) -> None:
    process = shell(f"ulimit -n 104; exec {SERVE} 0")
    ready_url(process)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    assert re.search("--max-connections is 2048, but this process may open 104 files at once: 32 connections", errors)


NO_FILES = """
import asyncio, os, resource
from core_observers.logging import setup_logging
from core_apis.server.process_limits import watch_files

async def main():
    watching = asyncio.ensure_future(watch_files())
    await asyncio.sleep(0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
    try:
        while True:
            os.dup(0)
    except OSError:
        await asyncio.sleep(0.1)
    assert not watching.done()

import core_apis.server.process_limits
core_apis.server.process_limits.WATCH_SECONDS = 0.01
setup_logging(process="server")
asyncio.run(main())
"""


def test_running_out_of_files_is_told_once_a_minute() -> None:
    done = subprocess.run([sys.executable, "-c", NO_FILES], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert "New connections are refused: Too many open files (this process may open 40)" in line


def test_what_the_loop_reports_is_a_sentence(caplog: pytest.LogCaptureFixture) -> None:
    with asyncio.Runner() as runner:
        on_loop_error(runner.get_loop(), {"message": "accept failed", "exception": OSError(24, "Too many open files")})
        on_loop_error(runner.get_loop(), {"message": "A task was never awaited.", "exception": KeyError("x")})
    system, ours = caplog.records
    assert system.getMessage() == "accept failed: [Errno 24] Too many open files"
    assert system.exc_info is None
    assert ours.exc_info is not None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_event_loop(start: Start, number: signal.Signals) -> None:
    process = start("0", "0", "0", "30")
    assert process.stdout is not None
    assert process.stdout.readline() == "resolving\n"
    process.send_signal(number)
    output, errors = process.communicate(timeout=10)
    assert (process.returncode, output) == (0, "False\n")
    assert STARTING.fullmatch(errors), errors


def test_an_early_signal_leaves_neither_engine_nor_directory(shell: Start, tmp_path: Path) -> None:
    process = shell(f"TMPDIR={tmp_path} exec {sys.executable} -m core serve --port 0")
    deadline = time.monotonic() + 20
    while not (children := engine_pids(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.005)
    assert children
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=20)
    assert (process.returncode, output) == (0, "")
    assert STARTING.fullmatch(errors), errors
    assert not list(tmp_path.iterdir())
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)


def engine_pids(pid: int) -> list[str]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [child for child in found if b"core.engine.process" in Path(f"/proc/{child}/cmdline").read_bytes()]


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
