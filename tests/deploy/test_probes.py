"""What probes see of a real server: while it loads, while its engine is started again, and while it ends."""

import contextlib
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.apis.serving_processes import free_port
from tests.apis.test_engine_deaths import engine_of
from tests.apis.test_real_server import START_LIMIT_SECONDS, Server, client_of, command, serving

ARGUMENTS = ("--served-model-name", "model", "--shutdown-timeout", "60", "--engine-restart-backoff", "0")


def stream_of(server: Server, tokens: int) -> Iterator[str | None]:
    """Reasons to finish, one for each chunk of a stream that runs."""
    chunks = client_of(server).completions.create(
        model="model", prompt="Once upon a time", max_tokens=tokens, stream=True, extra_body={"ignore_eos": True}
    )
    reasons = (chunk.choices[0].finish_reason for chunk in chunks)
    assert next(reasons) is None
    return reasons


def refusal(server: Server, path: str = "/ready") -> str:
    """Wait until a path answers that the server is not ready, and return the code that says why."""
    while (answer := httpx.get(f"{server.base}{path}")).status_code == 200:
        time.sleep(0.01)
    return answer.json()["error"]["code"]


def until_ready(server: Server) -> None:
    """Wait until the server is ready; it is alive all the while."""
    while httpx.get(f"{server.base}/ready").status_code != 200:
        assert httpx.get(f"{server.base}/live").status_code == 200
        time.sleep(0.01)


def ends_well(server: Server, reasons: Iterator[str | None]) -> bool:
    """Whether the stream of a server that was asked to end is complete, and then the server ends with exit code 0."""
    return list(reasons)[-1] == "length" and server.process.wait(60) == 0


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), pytest.param(("--api-server-count", "2"), marks=pytest.mark.slow)])
def test_readiness_of_a_server_whose_engine_dies_and_that_then_ends(tmp_path: Path, more: tuple[str, ...]) -> None:
    with serving(tmp_path / "log", *ARGUMENTS, *more) as server:
        until_ready(server)
        reasons = stream_of(server, 100)
        engine_of(server).kill()
        assert refusal(server, "/health") == "not_ready"
        until_ready(server)
        assert list(reasons)[-1] == "length"
        reasons = stream_of(server, 300)
        server.process.send_signal(signal.SIGTERM)
        assert refusal(server) == "server_draining"
        assert next(reasons) is None, "the stream had ended before the server was found not to be ready"
        assert ends_well(server, reasons)


def test_a_server_that_loads_answers_no_probe_and_may_be_ended(tmp_path: Path) -> None:
    port = free_port()
    with (tmp_path / "log").open("wb") as out:
        process = subprocess.Popen(command("serve", "--port", str(port)), stdout=out, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + START_LIMIT_SECONDS
    try:
        while True:  # until the port is bound, which is long before the engine runs
            assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "log").read_text()
            with contextlib.suppress(httpx.ReadTimeout):
                try:
                    httpx.get(f"http://127.0.0.1:{port}/health", timeout=0.05)
                except httpx.ConnectError:
                    continue
            break
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--api-server-count", "2")])
@pytest.mark.parametrize("order", ["the engine dies, then the signal comes", "the signal comes, then the engine dies"])
def test_streams_of_a_server_that_ends_survive_the_death_of_its_engine(
    tmp_path: Path, order: str, more: tuple[str, ...]
) -> None:
    with serving(tmp_path / "log", *ARGUMENTS, *more) as server:
        processes = [
            server.process.pid,
            *(child.pid for child in psutil.Process(server.process.pid).children(recursive=True)),
        ]
        reasons = stream_of(server, 200)
        if order.startswith("the engine"):
            engine_of(server).kill()
            server.process.send_signal(signal.SIGTERM)
        else:
            server.process.send_signal(signal.SIGTERM)
            engine_of(server).kill()
        assert refusal(server) in ("not_ready", "server_draining")
        assert ends_well(server, reasons)
        assert [pid for pid in processes if psutil.pid_exists(pid)] == []
