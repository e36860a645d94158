"""Damaged HTTP requests, byte by byte: refused or answered, never a 500, and the next client is served.

Owns: good requests with every header that is read, and the judgement of answers by h11, a parser that is not ours.
Never does: damage anything. Called by: the table of targets.

The server is the real one over an engine without a model. It runs in a thread.
"""

import json
import re
import socket
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import h11

from core_config.served.server_config import ServerConfig
from core_formats.server_limits import ServerLimits
from tests.apis.conftest import RunningServer, run_server

KEY = "secret"
LIMIT_S, READ_LIMIT_S = 8.0, 0.5
NAMES = ("chat", "chunked", "messages", "pipelined", "preflight")
BODY = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}).encode()
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
TOLD_TO_COME_BACK = 503


def request(line: str, headers: dict[str, str], body: bytes = b"") -> bytes:
    """A request as it travels."""
    lines = [line, "Host: 127.0.0.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def make_requests(folder: Path) -> None:
    """One request a file, two where they are sent one behind the other."""
    keyed = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json; charset=utf-8"}
    last = {"Connection": "close"}
    sized = {"Content-Length": str(len(BODY))}
    more = {
        "X-Request-Id": "mine-1",
        "X-Explain": "1",
        "Last-Event-ID": "7",
        "Origin": "https://example.org",
        "Accept": "text/event-stream",
        "Accept-Encoding": "gzip, br",
        "Connection": "close",
        "Expect": "100-continue",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    }
    chunked = b"%x\r\n%b\r\n%x\r\n%b\r\n0\r\nX-Trailer: 1\r\n\r\n" % (9, BODY[:9], len(BODY) - 9, BODY[9:])
    anthropic = {"x-api-key": KEY, "anthropic-version": "2023-06-01", "Content-Type": "application/json"}
    asked = {"Origin": "https://example.org", "Access-Control-Request-Method": "POST"}
    get = request("GET /v1/models?limit=5&after=%ff HTTP/1.1", {"Authorization": f"Bearer {KEY}"})
    end = request("GET /health HTTP/1.1", last)
    requests = {
        "chat": request("POST /v1/chat/completions HTTP/1.1", {**keyed, **sized, **more}, BODY),
        "chunked": request(
            "POST /v1/chat/completions HTTP/1.1", {**keyed, **last, "Transfer-Encoding": "chunked"}, chunked
        ),
        "messages": request("POST /v1/messages HTTP/1.1", {**anthropic, **sized, **last}, BODY),
        "pipelined": get + get + end,
        "preflight": request(
            "OPTIONS /v1/models HTTP/1.1", {**asked, **last, "Access-Control-Request-Headers": "x-one, x-two"}
        ),
    }
    for name in NAMES:
        (folder / name).write_bytes(requests[name])


def read_requests(folder: Path) -> None:
    """Each request on a connection of its own. Raises AssertionError when an answer is none, or the server is harmed."""
    with run_server(_settings()) as server:
        for path in sorted(folder.iterdir()):
            sent = path.read_bytes()
            _judge(sent, _exchange(server, sent))
        health = server.http.get("/health")
        assert health.status_code == 200, f"/health answers {health.status_code} afterwards"
        server.wait_idle()


def _settings() -> ServerConfig:
    limits = ServerLimits(request_read_timeout=READ_LIMIT_S, keep_alive_timeout=READ_LIMIT_S)
    return ServerConfig(api_keys=(KEY,), enable_request_id_headers=True, uvicorn_log_level="error", limits=limits)


def _exchange(server: RunningServer, sent: bytes) -> bytes:
    """All that is answered until the connection ends."""
    address = urlsplit(server.url)
    assert address.hostname is not None and address.port is not None
    received = b""
    with socket.create_connection((address.hostname, address.port), LIMIT_S) as connection, suppress(ConnectionError):
        connection.sendall(sent)
        while piece := connection.recv(65536):
            received += piece
    return received


def _judge(sent: bytes, received: bytes) -> None:
    """No 500, no traceback, and an answer that another parser reads as well."""
    for status in map(int, STATUS.findall(received)):
        assert status < 500 or status == TOLD_TO_COME_BACK, f"the status is {status}: {received[:500]!r}"
    assert b"Traceback" not in received, received[:500]
    received = received.removeprefix(CONTINUE)
    if not received:
        return
    method = sent.split(b" ", 1)[0]
    client = h11.Connection(h11.CLIENT)
    with suppress(h11.LocalProtocolError):  # a method that h11 would not send
        client.send(h11.Request(method=method or b"GET", target="/", headers=[("Host", "a")]))
    if client.our_state is h11.IDLE:
        client = h11.Connection(h11.CLIENT)
        client.send(h11.Request(method="GET", target="/", headers=[("Host", "a")]))
    client.send(h11.EndOfMessage())
    client.receive_data(received)
    client.receive_data(b"")
    while True:
        event = client.next_event()
        if event is h11.NEED_DATA or event is h11.PAUSED or isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
            break
    assert isinstance(event, h11.EndOfMessage), f"an answer without an end ({event}): {received[:300]!r}"
