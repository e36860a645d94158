"""Groups of real servers in each mode of `--data-parallel-...`: the tokens of one server, from every address."""

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.apis.serving_processes import ROOT, free_port

pytestmark = pytest.mark.slow
WANTED = {"model": "m", "prompt": [7, 100, 3, 55], "max_tokens": 24, "temperature": 0.8, "seed": 5, "logprobs": 2}
SIZES = ("--max-model-len", "64", "--num-gpu-blocks-override", "24", "--platform-config.threads", "1")
NAMED = ("--port", "0", "--served-model-name", "m", "--engine-restart-backoff", "0")


@contextmanager
def run(model: Path, log: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "core", "serve", str(model), *words]
    with log.open("w") as errors:
        process = subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=errors)
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
        assert "Traceback" not in log.read_text()
    finally:
        process.kill()
        process.communicate()


def url(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    found = re.search(r"at (http://\S+) ", process.stdout.readline())
    assert found is not None
    return found.group(1)


def choice(base: str) -> dict[str, Any]:
    answer: dict[str, Any] = httpx.post(f"{base}/v1/completions", json=WANTED, timeout=60).json()["choices"][0]
    return answer


def num_engines(process: subprocess.Popen[str]) -> int:
    children = psutil.Process(process.pid).children(recursive=True)
    return sum("core.engine.process" in child.cmdline() for child in children)


@pytest.fixture(scope="module")
def alone(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with run(tiny_llama, tmp_path_factory.mktemp("one") / "log", *SIZES, *NAMED) as server:
        return choice(url(server))


def test_one_address_for_engines_of_two_commands(tiny_llama: Path, tmp_path: Path, alone: dict[str, Any]) -> None:
    key = tmp_path / "key"
    key.write_text("a secret of more than thirty-two characters")
    key.chmod(0o600)
    meeting = ("--data-parallel-size", "2", "--data-parallel-size-local", "1", "--data-parallel-address", "127.0.0.2")
    meeting += ("--data-parallel-rpc-port", str(free_port()), "--engine-key-file", str(key))
    other = ("--headless", "--data-parallel-start-rank", "1")
    with ExitStack() as servers:
        front = servers.enter_context(run(tiny_llama, tmp_path / "front", *SIZES, *NAMED, *meeting))
        engine = servers.enter_context(run(tiny_llama, tmp_path / "engine", *SIZES, *meeting, *other))
        base = url(front)
        assert choice(base) == alone
        own = next(each for each in psutil.Process(front.pid).children() if "core.engine.process" in each.cmdline())
        own.kill()
        assert choice(base) == alone, "computed by the other machine's engine"
        assert num_engines(engine) == 1
        engines = httpx.get(f"{base}/health").json()["engines"]
        assert [each["engine"] for each in engines] == [0, 1]


def test_hybrid_and_external_load_balancers(tiny_llama: Path, tmp_path: Path, alone: dict[str, Any]) -> None:
    sizes = ("--data-parallel-size", "3", *SIZES, *NAMED)
    hybrid = ("--data-parallel-hybrid-lb", "--data-parallel-size-local", "2", "--data-parallel-start-rank", "1")
    with (
        run(tiny_llama, tmp_path / "hybrid", *sizes, *hybrid) as two,
        run(
            tiny_llama, tmp_path / "external", *sizes, "--data-parallel-rank", "0", "--data-parallel-external-lb"
        ) as one,
    ):
        addresses = url(two), url(one)
        assert [choice(base) for base in addresses] == [alone, alone]
        assert (num_engines(two), num_engines(one)) == (2, 1)
        assert "engines" not in httpx.get(f"{addresses[1]}/health").json()
        assert len(httpx.get(f"{addresses[0]}/health").json()["engines"]) == 2


def test_a_server_for_each_engine_at_ports_in_a_row(tiny_llama: Path, tmp_path: Path, alone: dict[str, Any]) -> None:
    first = next(port for port in iter(free_port, None) if is_free(port + 1))
    words = ("--data-parallel-size", "3", "--data-parallel-start-rank", "1", "--data-parallel-multi-port-external-lb")
    with run(tiny_llama, tmp_path / "log", *SIZES, *NAMED, "--port", str(first), *words) as servers:
        bases = {url(servers) for _ in range(2)}
        assert bases == {f"http://127.0.0.1:{first}", f"http://127.0.0.1:{first + 1}"}
        assert [choice(base) for base in bases] == [alone] * 2
        killed = next(each for each in psutil.Process(servers.pid).children() if str(first) in each.cmdline())
        engines = killed.children()
        killed.kill()
        assert url(servers) in bases, "it is started again"
        assert [choice(base) for base in bases] == [alone] * 2
        assert not any(each.is_running() for each in engines)


def is_free(port: int) -> bool:
    with socket.socket() as found:
        return found.connect_ex(("127.0.0.1", port)) != 0
