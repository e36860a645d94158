"""What one connection may take of the server, and what happens to the others meanwhile."""

import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlparse

import pytest

from core_apis.server.connection import MAX_PIPELINED
from core_config.served.server_config import ServerConfig
from core_formats.server_limits import ServerLimits
from tests.apis import fake_engine
from tests.apis.conftest import RunningServer, run_server
from tests.apis.test_disconnects import wait_for_requests

HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
HEAD = HEALTH.replace(b"GET", b"HEAD")
"""Its answer is one piece: it has no body."""

LIMITS = ServerLimits(max_header_size=4096, request_read_timeout=0.3, keep_alive_timeout=0.4)


@pytest.fixture(scope="module")
def limited() -> Iterator[RunningServer]:
    with run_server(ServerConfig(uvicorn_log_level="warning", limits=LIMITS)) as running:
        yield running


def connect(server: RunningServer) -> socket.socket:
    parts = urlparse(server.url)
    return socket.create_connection((parts.hostname, parts.port), timeout=10)


def answer(connection: socket.socket) -> bytes:
    """All until the server closes."""
    data = b""
    try:
        while part := connection.recv(65536):
            data += part
    except ConnectionResetError:
        pass
    return data


def send(connection: socket.socket, *parts: bytes) -> None:
    try:
        for part in parts:
            connection.sendall(part)
    except OSError:
        pass  # the server has closed it, which is the point


def post(body: bytes, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {size}\r\n\r\n"
    )
    return head.encode() + body


@pytest.mark.parametrize(
    "parts",
    [
        [b"GET /health HTTP/1.1\r\nx: ", *[b"a" * 65536] * 64],
        [b"GET /health HTTP/1.1\r\nx: " + b"a" * 5000 + b"\r\n\r\n"],
        [b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\n\r\n"],
        [b"GET /health HTTP/1.1\r\n", *[b"a: b\r\n" * 100] * 50],
        [b"GET /health HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: ", *[b"a" * 65536] * 64],
    ],
    ids=["endless", "one", "target", "many small", "trailer"],
)
def test_a_head_is_limited(limited: RunningServer, parts: list[bytes]) -> None:
    with closing(connect(limited)) as connection:
        send(connection, *parts)
        got = answer(connection)
    assert b" 431 " in got.partition(b"\r\n")[0] or got.startswith(b"HTTP/1.1 200"), got[:200]
    if b"chunked" not in parts[0]:
        assert b"--max-header-size" in got and b"connection: close" in got


UNREAD = HEALTH.replace(b"\r\n\r\n", b"\r\ncontent-length: 5\r\n\r\n")
SLOW_CLIENTS = [  # what they send, the status lines that they get
    ([b"GET /hea"], [408]),
    ([b"\r\n"], [408]),
    ([HEALTH, b"GET /hea"], [200, 408]),
    ([post(b'{"prompt": "Hi"', 100)], [408]),
    ([UNREAD], [200]),
    ([], []),
    ([HEALTH], [200]),
    ([HEALTH + HEALTH], [200, 200]),
]


def test_requests_have_to_come_in_time_and_silence_has_an_end(limited: RunningServer) -> None:
    connections = [connect(limited) for _ in SLOW_CLIENTS]
    for connection, (parts, _) in zip(connections, SLOW_CLIENTS, strict=True):
        send(connection, *parts)
    for connection, (parts, statuses) in zip(connections, SLOW_CLIENTS, strict=True):
        got = answer(connection)
        assert [int(part[:3]) for part in got.split(b"HTTP/1.1 ")[1:]] == statuses, (parts, got)
        assert (b"--request-read-timeout" in got) == (408 in statuses)
        connection.close()


def test_a_running_answer_is_never_cut(limited: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lasts longer than all limits, whatever comes behind it."""
    body = b'{"prompt": "SLOW", "max_tokens": 100, "n": 1, "stream": true}'
    results: dict[str, bytes] = {}

    def run(name: str, *later: bytes) -> None:
        with closing(connect(limited)) as connection:
            connection.sendall(post(body))
            for part in later:
                time.sleep(0.1)
                send(connection, part)
            connection.settimeout(10)
            results[name] = answer(connection)

    monkeypatch.setattr(fake_engine, "SLOW_SECONDS", 0.05)
    threads = [
        threading.Thread(target=run, args=("alone",)),
        threading.Thread(target=run, args=("half a request", b"GET /hea")),
        threading.Thread(target=run, args=("junk", b"\x00\x00\r\n\r\n")),
        threading.Thread(target=run, args=("too large", b"GET /" + b"a" * 9000)),
        threading.Thread(target=run, args=("pipelined", HEALTH, HEALTH)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(15)
    for name, got in results.items():
        first, done, rest = got.partition(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert first.startswith(b"HTTP/1.1 200") and done, name
        assert rest.count(b"HTTP/1.1 200") == (2 if name == "pipelined" else 0), name
    assert len(results) == len(threads)


def test_a_client_that_takes_nothing_of_its_answers_is_given_up(limited: RunningServer) -> None:
    parts = urlparse(limited.url)
    with closing(socket.socket()) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((parts.hostname, parts.port))
        body = b'{"tokens": [' + b"100," * 400_000 + b"100]}"  # its text does not fit the system's own buffers
        head = f"POST /detokenize HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        connection.settimeout(1)
        for _ in range(20):
            send(connection, head + body)
        hung_up = select.poll()
        hung_up.register(connection, 0)
        assert hung_up.poll(5000)


def test_the_longest_silent_connection_goes_for_a_new_one() -> None:
    limits = ServerLimits(max_connections=3)
    with run_server(ServerConfig(uvicorn_log_level="warning", limits=limits)) as server:
        first, second, third = (connect(server) for _ in range(3))
        for connection in (second, third, first):
            connection.sendall(HEAD)
            assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        with closing(connect(server)) as fourth:
            fourth.sendall(HEAD)
            assert fourth.recv(1000).startswith(b"HTTP/1.1 200")
            while second.recv(65536):
                pass  # the rest of its answer, then its end
            for connection in (third, first, fourth):
                connection.sendall(HEAD)
                assert b"HTTP/1.1 200" in connection.recv(1000)
        for connection in (first, second, third):
            connection.close()


def test_when_all_connections_are_busy_a_new_one_is_told() -> None:
    limits = ServerLimits(max_connections=2)
    with run_server(ServerConfig(uvicorn_log_level="warning", limits=limits)) as server:
        busy = [connect(server) for _ in range(2)]
        for connection in busy:
            connection.sendall(post(b'{"prompt": "SLOW", "max_tokens": 100}'))
        wait_for_requests(server, 2)
        with closing(connect(server)) as third:
            got = answer(third)
        assert got.startswith(b"HTTP/1.1 503") and b"retry-after: 1" in got and b'"too_many_connections"' in got
        assert all(b"200 OK" in connection.recv(1000) for connection in busy)
        for connection in busy:
            connection.close()


def test_a_client_that_leaves_takes_its_request_along_whatever_waits_behind_it(server: RunningServer) -> None:
    server.fake.aborted.clear()
    with closing(connect(server)) as connection:
        connection.sendall(post(b'{"prompt": "SLOW", "max_tokens": 100}') + HEALTH)
        wait_for_requests(server, 1)
    server.wait_idle(1.0)
    assert len(server.fake.aborted) == 1


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"GET /health HTTP/1.1\nhost: x\n\n\x00",
        b"GET /health HTTP/1.1\r\na b: c\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost : x\r\n\r\n",
        b"GET /h\xc3\xa4 HTTP/1.1\r\nhost: x\r\n\r\n",
        b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST /ping HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /ping HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcdef",
        b"POST /ping HTTP/1.1\r\nhost: x\r\ncontent-length: +5\r\n\r\nabcde",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"POST /ping HTTP/1.1\r\nhost: x\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
        b"GET /health HTTP/1.0\r\nhost: a\r\nhost: a\r\n\r\n",
        b"POST /ping HTTP/1.0\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_what_is_no_http_is_refused(server: RunningServer, capfd: Any, request_bytes: bytes) -> None:
    with closing(connect(server)) as connection:
        connection.sendall(request_bytes)
        got = answer(connection)
    assert got.startswith(b"HTTP/1.1 400") and b'"malformed_request"' in got, got
    assert b"connection: close" in got
    assert "Traceback" not in capfd.readouterr().err


def test_http_1_0_needs_no_host(server: RunningServer) -> None:
    with closing(connect(server)) as connection:
        connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert answer(connection).startswith(b"HTTP/1.1 200")


def test_requests_beyond_the_limit_of_a_connection_are_told(server: RunningServer) -> None:
    with closing(connect(server)) as connection:
        connection.sendall(HEALTH * 60)
        got = answer(connection)
    assert got.count(b"HTTP/1.1 200") == MAX_PIPELINED + 1
    last = got[got.rindex(b"HTTP/1.1") :]
    assert last.startswith(b"HTTP/1.1 429") and b'"too_many_pipelined"' in last and b"retry-after: 1" in last


def test_what_is_no_http_behind_a_request_is_told_after_its_answer(server: RunningServer) -> None:
    with closing(connect(server)) as connection:
        connection.sendall(post(b'{"prompt": "SLOW", "max_tokens": 3}') + HEALTH + b"GET /health HTTP/1.1\r\n\r\n")
        got = answer(connection)
    statuses = [part[:3] for part in got.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"200", b"200", b"400"] and b"cmpl-" in got


def test_no_other_protocol_follows_a_request(server: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    upgrade = HEALTH.replace(b"\r\n\r\n", b"\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
    with closing(connect(server)) as connection:
        connection.sendall(upgrade + HEALTH)
        got = answer(connection)
    assert got.startswith(b"HTTP/1.1 200") and got.count(b"HTTP/1.1") == 1
    assert not caplog.records


def test_trailers_are_no_headers(server: RunningServer) -> None:
    with closing(connect(server)) as connection:
        body = b'd\r\n{"prompt":"Hi\r\n2\r\n"}\r\n0\r\nx-request-id: trailer\r\n\r\n'
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
        connection.sendall(head + body)
        got = answer(connection)
    assert b" 200 " in got and b"cmpl-" in got and b"cmpl-trailer" not in got


def test_refusals_are_one_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    with run_server(ServerConfig(uvicorn_log_level="warning")) as server:
        for _ in range(20):
            with closing(connect(server)) as connection:
                connection.sendall(b"junk\r\n\r\n")
                answer(connection)
        deadline = time.monotonic() + 5
        while not caplog.records:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert len(caplog.records) == 1 and "malformed_request" in caplog.records[0].getMessage()


def test_a_client_that_leaves_in_mid_body_is_no_error(server: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    for path in (b"/v1/completions", b"/tokenize"):
        with closing(connect(server)) as connection:
            connection.sendall(post(b'{"prompt": ', 1000).replace(b"/v1/completions", path))
            time.sleep(0.05)
    assert server.http.get("/health").status_code == 200
    time.sleep(0.1)
    assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []
