"""Clients that go away in the middle, and the look at whether the server has noticed. Used by several phases."""

import socket
import struct
import time
from contextlib import suppress

from tests.attack.make import completion
from tests.attack.probe import open_stream
from tests.attack.results import Phase
from tests.attack.row import Row
from tests.attack.send import Target, head
from tests.attack.server import metric

POST = Row("completion", "/v1/completions")
RESET = struct.pack("ii", 1, 0)


def leave_in_body(target: Target, number: int) -> bool:
    """Promise a body, send half of it, close or reset the connection."""
    body = completion(prompt="word " * 400)
    with suppress(OSError), target.connect(5.0) as connection:
        connection.sendall(head(target, POST, body) + body[: len(body) // 2])
        _vanish(connection, number)
        return True
    return False


def leave_in_stream(target: Target, number: int) -> bool:
    """Leave when the first token is there."""
    with suppress(OSError), open_stream(target, 64, f"Number {number}") as connection:
        connection.settimeout(20.0)
        begun = bool(connection.recv(4096))
        _vanish(connection, number)
        return begun
    return False


def _vanish(connection: socket.socket, number: int) -> None:
    if number % 2:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


def idle(phase: Phase, target: Target, limit_s: float = 10.0) -> None:
    """Nothing runs or waits any more, and no KV block is in use."""
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    deadline = time.monotonic() + limit_s
    while any(values := [metric(target, name) for name in names]) and time.monotonic() < deadline:
        time.sleep(0.1)
    for name, value in zip(names, values, strict=True):
        phase.check(f"{name} in the end", value == 0, value, 0)
    for name in ("failed_steps", "integrity_violations"):
        value = metric(target, name)
        phase.check(name, value == 0, value, 0)
