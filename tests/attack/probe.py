"""Measures a server from a process of its own while others attack it: `python -m tests.attack.probe PORT KEY SECONDS`.

Asks for /health on one connection and reads one stream after the other on another, until the seconds are over or standard
input closes; then prints {"health": [...], "gaps": [...], "failures": n} in seconds. An answer that never came counts as
the time that was waited for it.
"""

import http.client
import json
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.attack.make import completion
from tests.attack.row import Row
from tests.attack.send import Target, head

INTERVAL_S = 0.02
PATIENCE_S = 30.0
STREAM_TOKENS, STREAM_PROMPT = 1500, "Once upon a time"


@dataclass(slots=True)
class Measured:
    """Seconds. failures: answers of /health other than 200, and streams that broke."""

    health: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    failures: int = 0


def watch_health(target: Target, over: threading.Event, measured: Measured) -> None:
    """Ask at least once, and again and again, each time on the same connection while it lasts."""
    connection = http.client.HTTPConnection(target.host, target.port, timeout=PATIENCE_S)
    is_over = False
    while not is_over:
        begin = time.perf_counter()
        try:
            connection.request("GET", "/health")
            answer = connection.getresponse()
            answer.read()
            measured.failures += answer.status != 200
        except (OSError, http.client.HTTPException):
            measured.failures += 1
            connection.close()
        measured.health.append(time.perf_counter() - begin)
        is_over = over.wait(INTERVAL_S)
    connection.close()


def watch_stream(
    target: Target, over: threading.Event, measured: Measured, tokens: int = STREAM_TOKENS, prompt: str = STREAM_PROMPT
) -> None:
    """Read streams, one after the other, and note the time from each piece to the next."""
    while not over.is_set():
        try:
            with open_stream(target, tokens, prompt) as connection:
                last = None
                while not over.is_set() and (piece := connection.recv(65536)):
                    now = time.perf_counter()
                    if last is not None:
                        measured.gaps.append(now - last)
                    last = now
                    if b"[DONE]" in piece or b"0\r\n\r\n" in piece:
                        break
        except OSError:
            measured.failures += 1
            over.wait(0.1)


def open_stream(target: Target, tokens: int, prompt: str = STREAM_PROMPT, **fields: object) -> socket.socket:
    """A connection on which a stream of so many tokens has been asked for."""
    body = completion(prompt=prompt, max_tokens=tokens, stream=True, ignore_eos=True, **fields)
    connection = target.connect(PATIENCE_S)
    try:
        connection.sendall(head(target, Row("stream", "/v1/completions"), body) + body)
    except OSError:
        connection.close()
        raise
    return connection


@contextmanager
def probing(target: Target, limit_s: float = 120.0) -> Iterator[Measured]:
    """Measure in a process of its own while the body runs; the numbers are there afterwards."""
    measured = Measured()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.attack.probe", str(target.port), target.key, str(limit_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        select.select([process.stdout], [], [], 10)
        process.stdout.readline()  # it has begun
        yield measured
    finally:
        try:
            out, _ = process.communicate(timeout=2 * PATIENCE_S + 5)
            found = json.loads(out.splitlines()[-1])
            measured.health, measured.gaps, measured.failures = found["health"], found["gaps"], found["failures"]
        except (subprocess.TimeoutExpired, ValueError, LookupError):
            measured.failures += 1
            process.kill()
            process.wait()


def measure(target: Target, seconds: float, until_input_closes: bool = False, **stream: Any) -> Measured:
    """Measure in this process. stream: tokens and prompt of the streams."""
    measured, over = Measured(), threading.Event()
    threads = [
        threading.Thread(target=watch_health, args=(target, over, measured), daemon=True),
        threading.Thread(target=watch_stream, args=(target, over, measured), kwargs=stream, daemon=True),
    ]
    for thread in threads:
        thread.start()
    if until_input_closes:
        select.select([sys.stdin], [], [], seconds)
    else:
        time.sleep(seconds)
    over.set()
    for thread in threads:
        thread.join(PATIENCE_S + 1)
    return measured


def main() -> None:
    """Entry point of the process."""
    target = Target("127.0.0.1", int(sys.argv[1]), sys.argv[2])
    print("measuring", flush=True)
    found = measure(target, float(sys.argv[3]), until_input_closes=True)
    print(json.dumps({"health": found.health, "gaps": found.gaps, "failures": found.failures}), flush=True)


if __name__ == "__main__":
    main()
