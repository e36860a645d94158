"""An API server and an engine that are two commands: either order, deaths of either, and who is turned away."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.apis.serving_processes import ROOT
from tests.engine.fakes import reference

PROMPT = [1, 2, 3]


class Command:
    """One of the two, with what it has written so far in a file."""

    def __init__(self, role: str, port: int, directory: Path, prefix: Sequence[str] = (), **options: object) -> None:
        self._log = directory / f"{role}-{time.monotonic_ns()}"
        words = [f"{name}={value}" for name, value in options.items()]
        command = [*prefix, sys.executable, "-m", "tests.apis.serve_apart", role, str(port), *words]
        environment = {**os.environ, "TMPDIR": str(directory)}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, env=environment)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def says(self, pattern: str) -> re.Match[str]:
        """Wait until it has written something like that."""
        deadline = time.monotonic() + 40
        while (found := re.search(pattern, self.log)) is None:
            assert time.monotonic() < deadline, f"{pattern!r} is not in\n{self.log}"
            assert self.process.poll() is None or re.search(pattern, self.log), self.log
            time.sleep(0.02)
        return found

    def url(self) -> str:
        return self.says(r"Serving fake at (http://127\.0\.0\.1:\d+) ").group(1)

    def engine_pid(self) -> int:
        children = psutil.Process(self.process.pid).children()
        (pid,) = [child.pid for child in children if "core.engine.process" in child.cmdline()]
        return pid

    def ended(self) -> int:
        code = self.process.wait(timeout=30)
        assert "Traceback" not in self.log, self.log
        return code

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.ended()


Begin = Callable[..., Command]


@pytest.fixture
def begin(tmp_path: Path, port: int) -> Iterator[Begin]:
    commands: list[Command] = []

    def start(role: str, **options: object) -> Command:
        commands.append(Command(role, port, tmp_path, **options))
        return commands[-1]

    yield start
    for command in commands:
        if command.process.poll() is None:
            command.process.kill()
        command.process.wait()


def expected(count: int) -> str:
    return bytes(reference(PROMPT, count)).decode()


def text(url: str, count: int) -> str:
    body = {"model": "fake", "prompt": PROMPT, "max_tokens": count}
    return str(httpx.post(f"{url}/v1/completions", json=body, timeout=30).json()["choices"][0]["text"])


@contextmanager
def stream(url: str, count: int) -> Iterator[Iterator[str]]:
    """The texts of a stream that has begun."""
    body = {"model": "fake", "prompt": PROMPT, "max_tokens": count, "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=120) as answer:
        lines = (line.removeprefix("data: ") for line in answer.iter_lines() if line)
        yield (json.loads(line)["choices"][0]["text"] for line in lines if line != "[DONE]")


def test_streams_outlive_the_engine_and_its_command_and_the_engine_outlives_the_front(begin: Begin) -> None:
    engine = begin("engine")
    engine.says("Engine of fake for the API server at 127.0.0.1")
    front = begin("api_server")
    url = front.url()
    with stream(url, 60) as texts:
        begun = next(texts)
        os.kill(engine.engine_pid(), signal.SIGKILL)
        assert begun + "".join(texts) == expected(60), "it goes on in the engine that its command has started"

    with stream(url, 100) as texts:
        begun = next(texts)
        engine.process.kill()
        front.says("is gone: the connection was lost. Waiting for an engine")
        second = begin("engine")
        assert begun + "".join(texts) == expected(100), "it goes on in the engine of the next command"

    front.process.kill()
    second.says("The API server is gone: the connection was lost. Its requests end here")
    url = begin("api_server").url()
    assert text(url, 7) == expected(7)
    assert second.end() == 0


@pytest.mark.slow
def test_another_engine_takes_over_and_each_ends_when_the_other_does_not_come(begin: Begin, port: int) -> None:
    front, wrong = begin("api_server", patience_s=8.0, max_model_len=256), begin("engine", max_model_len=128)
    assert wrong.ended() == 1
    assert "refuses this engine. --max-model-len is 256 at the API server and 128 at the engine" in wrong.log
    engine = begin("engine", delay_s=0.02)
    url = front.url()
    unwanted = begin("engine", patience_s=1.0)
    assert unwanted.ended() == 1
    assert (
        f"the API server was expected at tcp://127.0.0.1:{port}" in unwanted.log and "it has an engine" in unwanted.log
    )

    second = begin("engine", delay_s=0.05)
    second.says(r"Waiting for the API server .*it has an engine: .*process \d+ of")
    with stream(url, 200) as texts:
        begun = next(texts)
        engine.process.kill()
        assert begun + "".join(texts) == expected(200), "it goes on in the engine that has waited"

    with stream(url, 200) as texts:
        next(texts)
        assert second.end() == 0, "what does not end in its time is left to another engine"
        with pytest.raises((KeyError, httpx.HTTPError)):
            list(texts)
    assert front.ended() == 1
    assert (
        f"No connection in 8 s (--engine-connect-timeout): an engine was expected at tcp://127.0.0.1:{port}"
        in front.log
    )


@pytest.mark.slow
def test_real_commands_with_a_key_give_the_tokens_of_one_server(tiny_llama: Path, tmp_path: Path, port: int) -> None:
    key = tmp_path / "key"
    key.write_text("a secret of more than thirty-two characters")
    key.chmod(0o600)
    sizes = ["--max-model-len", "64", "--num-gpu-blocks-override", "24"]
    named = ["--port", "0", "--served-model-name", "m"]
    meeting = ["--data-parallel-rpc-port", str(port), "--engine-key-file", str(key), "--engine-connect-timeout", "60"]
    wanted = {"prompt": [7, 100, 3, 55], "max_tokens": 24, "temperature": 0.8, "seed": 5, "logprobs": 2}

    @contextmanager
    def run(*words: str) -> Iterator[subprocess.Popen[str]]:
        command = [sys.executable, "-m", "core", "serve", str(tiny_llama), *words]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, cwd=ROOT, text=True, stdout=pipe, stderr=subprocess.DEVNULL)
        try:
            yield process
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.communicate()

    def answered(process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout is not None
        found = re.search(r"at (http://\S+) ", process.stdout.readline())
        assert found is not None
        answer = httpx.post(f"{found.group(1)}/v1/completions", json={"model": "m", **wanted}, timeout=60).json()
        choice: dict[str, Any] = answer["choices"][0]
        return choice

    with run(*sizes, *named) as server:
        alone = answered(server)
    with run("--headless", *sizes, *meeting), run("-dpl", "0", *named, *meeting) as front:
        assert answered(front) == alone
