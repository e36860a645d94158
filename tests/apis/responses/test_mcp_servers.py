"""Tool servers through the official `mcp` package: real server processes, and servers that lie.

Run with `make test-tools`, which installs the package; skipped without it.
"""

import asyncio
import functools
import gzip
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

pytest.importorskip("mcp", reason="make test-tools installs it")

from core_apis.tools import making
from core_apis.tools.mcp_server import McpServer
from core_apis.tools.offered import CallResult
from core_apis.tools.tool_servers import ToolServers
from core_config.served.server_config import ServerConfig
from tests.apis.conftest import run_server
from tests.apis.fake_engine import make_tokenizer
from tests.apis.responses.checked import added_up, parsed, valid
from tests.apis.responses.test_responses_client import TEMPLATE
from tests.apis.scripted_engine import ConversingClient

TRANSPORTS = ("streamable", "json", "sse")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def running(transport: str, port: int) -> Iterator[str]:
    """A server process; its URL once it listens."""
    command = [sys.executable, "-m", "tests.apis.responses.mcp_process", transport, str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while True:
            assert process.poll() is None and time.monotonic() < deadline, "the MCP server did not start"
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/{'sse' if transport == 'sse' else 'mcp'}"
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module", params=TRANSPORTS)
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    with running(request.param, free_port()) as url:
        yield url


def ask(servers: ToolServers, label: str, name: str, arguments: str = "{}") -> CallResult:
    return asyncio.run(servers.call(label, name, arguments))


def connected(url: str, call_s: float = 30.0) -> ToolServers:
    servers = ToolServers([McpServer(url, sse=url.endswith("/sse"), label=None)], call_s=call_s, list_s=30.0)
    servers.start()
    return servers


def test_a_real_server_lists_and_answers(address: str) -> None:
    servers = connected(address)
    (offered,) = servers.offered
    assert offered.label == "A_place"
    assert [tool.name for tool in offered.tools] == ["weather", "broken", "huge", "hangs", "numbers"]
    assert offered.tools[0].description == "The weather of a city."
    assert offered.tools[0].input_schema["required"] == ["city"]
    assert ask(servers, "A_place", "weather", '{"city": "Köln"}') == CallResult("WARM in Köln")
    assert json.loads(ask(servers, "A_place", "numbers").output or "") == {"one": 1}
    assert "It broke" in (ask(servers, "A_place", "broken").error or "")
    wrong = ask(servers, "A_place", "weather", '{"city": 5}')
    assert wrong.output is None and "city" in (wrong.error or "")
    assert ask(servers, "A_place", "unlisted").output is None
    asyncio.run(servers.close())


def test_a_real_server_hangs_or_sends_too_much(address: str) -> None:
    servers = connected(address, call_s=3.0)
    assert ask(servers, "A_place", "huge", '{"num_bytes": 400000}').output == "x" * 400_000
    for size in (1_200_000, 100_000_000):
        failed = ask(servers, "A_place", "huge", json.dumps({"num_bytes": size}))
        assert failed.output is None and failed.error
    assert "did not answer within 3 s" in (ask(servers, "A_place", "hangs").error or "")
    deadline = time.monotonic() + 60  # the server may still be busy with 100 MB that nobody reads
    while (answer := ask(servers, "A_place", "weather", '{"city": "a"}')).output is None:
        assert time.monotonic() < deadline, answer.error
    assert answer.output == "WARM in a"
    asyncio.run(servers.close())


def test_a_server_that_ends_and_comes_back() -> None:
    port = free_port()
    with running("streamable", port) as url:
        servers = connected(url)
        assert ask(servers, "A_place", "weather", '{"city": "a"}').output == "WARM in a"
    gone = ask(servers, "A_place", "weather", '{"city": "a"}')
    assert gone.output is None and gone.error
    with running("streamable", port):
        assert ask(servers, "A_place", "weather", '{"city": "b"}').output == "WARM in b"
    asyncio.run(servers.close())


def test_a_response_over_a_real_server(address: str) -> None:
    rows = [
        ("ASK", '<tool_call>\n{"name": "here__weather", "arguments": {"city": "Bonn"}}\n</tool_call>'),
        ("WARM in Bonn", "It is warm."),
    ]
    config = ServerConfig(uvicorn_log_level="warning", tool_servers=(f"here={address}",))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("core_apis.tools.tool_servers.LIST_S", 30.0)
        client = functools.partial(ConversingClient, rows=rows)
        with run_server(config, client=client, tokenizer=make_tokenizer(TEMPLATE), max_model_len=4096) as server:
            body = {"model": "fake-model", "input": "ASK", "tools": [{"type": "mcp", "server_label": "here"}]}
            whole = server.http.post("/v1/responses", json=body).json()
            valid(whole)
            streamed = added_up(parsed(server.http.post("/v1/responses", json={**body, "stream": True}).text))
    for response in (whole, streamed):
        assert [item["type"] for item in response["output"]] == ["mcp_list_tools", "mcp_call", "message"]
        assert response["output"][1]["output"] == "WARM in Bonn"
        assert response["output"][2]["content"][0]["text"] == "It is warm."


Answer = Callable[[BaseHTTPRequestHandler, dict[str, Any]], None]


@contextmanager
def lying(answer: Answer) -> Iterator[str]:
    """A server that greets as MCP demands, and answers each call with `answer`."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["content-length"])))
            method = message.get("method")
            if method == "initialize":
                info = {"name": "liar", "version": "1"}
                version = message["params"]["protocolVersion"]
                say(self, message, {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info})
            elif method == "tools/list":
                say(self, message, {"tools": [{"name": "lie", "inputSchema": {"type": "object"}}]})
            elif method == "tools/call":
                answer(self, message)
            else:
                send(self, 202, b"")

        def do_GET(self) -> None:
            send(self, 405, b"")

        def log_message(self, *args: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/mcp"
    finally:
        server.shutdown()
        server.server_close()


def send(handler: BaseHTTPRequestHandler, status: int, data: bytes, **headers: str) -> None:
    handler.send_response(status)
    for name, value in {"content_length": str(len(data)), "content_type": "application/json", **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    try:
        handler.wfile.write(data)
    except OSError:  # the client has seen enough
        handler.close_connection = True


def say(handler: BaseHTTPRequestHandler, message: dict[str, Any], result: Any) -> None:
    send(handler, 200, json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode())


def bomb(handler: BaseHTTPRequestHandler, message: dict[str, Any]) -> None:
    whole = {"jsonrpc": "2.0", "id": message["id"], "result": {"content": [{"type": "text", "text": "x" * 10_000_000}]}}
    send(handler, 200, gzip.compress(json.dumps(whole).encode()), content_encoding="gzip")


LIES: dict[str, Answer] = {
    "no object": lambda handler, message: say(handler, message, 5),
    "other types": lambda handler, message: say(handler, message, {"content": {"type": "text"}}),
    "other parts": lambda handler, message: say(handler, message, {"content": [{"type": "text", "text": 5}]}),
    "no JSON": lambda handler, message: send(handler, 200, b"\xff{{{"),
    "deep JSON": lambda handler, message: send(handler, 200, b"[" * 500_000),
    "another id": lambda handler, message: say(handler, {**message, "id": 10**9}, {"content": []}),
    "other content": lambda handler, message: send(handler, 200, b"hello", content_type="text/html"),
    "an HTTP error": lambda handler, message: send(handler, 500, b"{}"),
    "a redirect": lambda handler, message: send(handler, 307, b"", location="http://127.0.0.1:1/"),
    "compressed": bomb,
    "100 MB": lambda handler, message: send(handler, 200, b" " * 100_000_000),
    "nothing": lambda handler, message: handler.connection.close(),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_server_that_lies_costs_its_call(lie: str) -> None:
    with lying(LIES[lie]) as url:
        servers = connected(url, call_s=3.0)
        assert [server.label for server in servers.offered] == ["liar"]
        result = ask(servers, "liar", "lie")
        assert result.output is None and result.error and len(result.error) < 400
        assert [server.label for server in servers.offered] == ["liar"]
        asyncio.run(servers.close())


def test_the_package_is_found() -> None:
    servers = making.tool_servers(("nobody=http://127.0.0.1:9/mcp", "127.0.0.1:9"))
    assert servers is not None and servers.offered == []
    asyncio.run(servers.close())
