"""Server processes for tests of their life: from the shell, and over the fake engine."""

import random
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
SERVE = f"{sys.executable} -m tests.apis.serve_fake"
Start = Callable[..., "subprocess.Popen[str]"]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def free_ports(count: int) -> int:
    """A port before `count` further free ones, below those that the system gives to others."""
    while True:
        first = random.SystemRandom().randrange(20_000, 32_000 - count)
        with ExitStack() as opened:
            try:
                for port in range(first, first + count + 1):
                    opened.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
        return first


@contextmanager
def shells() -> Iterator[Start]:
    """Starts shell commands, which end with the block."""
    processes: list[subprocess.Popen[str]] = []

    def begin(command: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        process = subprocess.Popen(["bash", "-c", command], cwd=ROOT, text=True, stdout=pipe, stderr=pipe)
        processes.append(process)
        return process

    yield begin
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


@contextmanager
def announced(command: list[str], environment: dict[str, str]) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """A server process over the fake engine, and its address once it has announced it; it ends with the block."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=ROOT, text=True, stdout=pipe, stderr=pipe, env=environment)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        while line and not line.startswith("Serving"):
            line = process.stdout.readline()
        found = re.match(r"Serving fake at (http://127\.0\.0\.1:\d+) ", line)
        assert found, process.communicate()
        yield process, found.group(1)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def fake_server(shell: Start, *arguments: str) -> subprocess.Popen[str]:
    """Start the fake server; arguments: those of `serve_fake`."""
    return shell(shlex.join(["exec", *SERVE.split(), *arguments]))


def ready_url(process: subprocess.Popen[str]) -> str:
    """Its address, once it serves."""
    assert process.stdout is not None
    assert process.stdout.readline() == "starting\n"
    line = process.stdout.readline()
    found = re.fullmatch(r"Serving fake-model at (http://127\.0\.0\.1:\d+) \(weights 0\.01 s, total .* s\)\n", line)
    assert found, line
    return found.group(1)
