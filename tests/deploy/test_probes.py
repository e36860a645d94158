"""What probes see of a real server: while it loads, while its engine is started again, and while it ends."""

import contextlib
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from tests.apis.serving_processes import free_port
from tests.apis.test_engine_deaths import engine_of
from tests.apis.test_real_server import START_LIMIT_SECONDS, Server, client_of, command, serving


def stream_of(server: Server, tokens: int) -> Iterator[str | None]:
    """Reasons to finish, one for each chunk of a stream that runs."""
    chunks = client_of(server).completions.create(
        model="model", prompt="Once upon a time", max_tokens=tokens, stream=True, extra_body={"ignore_eos": True}
    )
    reasons = (chunk.choices[0].finish_reason for chunk in chunks)
    assert next(reasons) is None
    return reasons


def test_a_server_that_ends_is_not_ready_and_its_streams_end_well(tmp_path: Path) -> None:
    arguments = ("--served-model-name", "model", "--shutdown-timeout", "60")
    with serving(tmp_path / "log", *arguments) as server:
        assert httpx.get(f"{server.base}/ready").json()["state"] == "serving"
        reasons = stream_of(server, 300)
        server.process.send_signal(signal.SIGTERM)
        while (answer := httpx.get(f"{server.base}/ready")).status_code == 200:
            time.sleep(0.01)
        assert answer.json()["error"]["code"] == "server_draining"
        assert next(reasons) is None, "the stream had ended before the server was found not to be ready"
        assert list(reasons)[-1] == "length"
        assert server.process.wait(60) == 0


def test_a_server_whose_engine_is_started_again_is_alive_and_not_ready(tmp_path: Path) -> None:
    with serving(tmp_path / "log", "--served-model-name", "model", "--engine-restart-backoff", "0") as server:
        reasons = stream_of(server, 100)
        engine_of(server).kill()
        answers = []
        while not answers or answers[-1].status_code != 200 or answers[-1].json()["engine_restarts"] == 0:
            assert httpx.get(f"{server.base}/health").status_code == 200
            answers.append(httpx.get(f"{server.base}/ready"))
            time.sleep(0.01)
        refused = next(answer for answer in answers if answer.status_code == 503)
        assert refused.json()["error"]["code"] == "not_ready"
        assert list(reasons)[-1] == "length"


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
