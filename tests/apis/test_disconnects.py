"""A client that goes away takes its request with it."""

import socket
import threading
import time
from typing import Any
from urllib.parse import urlparse

import httpx
import pytest

from tests.apis.conftest import RunningServer

SLOW: dict[str, Any] = {"prompt": "SLOW", "max_tokens": 20}


def wait_for_requests(server: RunningServer, count: int) -> None:
    deadline = time.monotonic() + 3
    while len(server.fake.live) < count:
        assert time.monotonic() < deadline, "the request did not reach the engine"
        time.sleep(0.005)


def post_and_leave(server: RunningServer, path: str, body: bytes, count: int) -> None:
    parts = urlparse(server.url)
    with socket.create_connection((parts.hostname, parts.port)) as connection:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        connection.sendall(head.encode() + body)
        wait_for_requests(server, count)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("prompt", "choices"), [("SLOW", 1), (["SLOW", "SLOW 2"], 4)])
def test_leaving_aborts(server: RunningServer, stream: bool, prompt: Any, choices: int) -> None:
    server.fake.aborted.clear()
    body = {**SLOW, "prompt": prompt, "stream": stream, "n": choices // (1 if choices == 1 else 2)}
    post_and_leave(server, "/v1/completions", httpx.Request("POST", "http://x", json=body).content, choices)
    server.wait_idle(10.0)
    assert len(server.fake.aborted) == (2 if isinstance(prompt, list) else 1)


def test_leaving_in_the_middle_of_a_stream(server: RunningServer) -> None:
    server.fake.aborted.clear()
    body = {"messages": [{"role": "user", "content": "SLOW"}], "stream": True}
    with server.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = answer.iter_lines()
        for _ in range(4):
            next(lines)
    server.wait_idle(1.0)
    assert len(server.fake.aborted) == 1


def test_a_stop_string_ends_the_sequence_in_the_engine(server: RunningServer) -> None:
    server.fake.aborted.clear()
    answer = server.http.post("/v1/completions", json={**SLOW, "stop": "l"})
    assert answer.json()["choices"][0]["text"] == "He"
    server.wait_idle(0.2)


def test_streams_of_other_clients_go_on(server: RunningServer) -> None:
    results: list[str] = []

    def stay() -> None:
        results.append(server.http.post("/v1/completions", json=SLOW).json()["choices"][0]["text"])

    thread = threading.Thread(target=stay)
    thread.start()
    wait_for_requests(server, 1)
    post_and_leave(server, "/v1/completions", httpx.Request("POST", "http://x", json=SLOW).content, 2)
    thread.join(5)
    assert len(results) == 1 and results[0].startswith("Hello")
