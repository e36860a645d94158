"""Endpoints against a real server: what they read is what httpx reads; and against servers that misbehave."""

import asyncio
import contextlib
import json
import ssl
from contextlib import asynccontextmanager

import pytest

from core.api.errors import UserError
from core_commands.client.app_endpoint import AppEndpoint
from core_commands.client.chunks import chunks
from core_commands.client.endpoint import EndpointError, whole
from core_commands.client.events import DONE, events
from core_commands.client.http_endpoint import HttpEndpoint
from core_config.served.server_config import ServerConfig
from tests.apis.conftest import run_server
from tests.apis.fake_engine import client_of, make_engine
from tests.client.apps import fake_endpoint

BODY = {"prompt": "hi", "max_tokens": 20, "temperature": 0}


@pytest.fixture(scope="module")
def server():
    with run_server(ServerConfig(uvicorn_log_level="warning", api_keys=("key",))) as running:
        yield running


async def read(endpoint, body, path="/v1/completions"):
    async with endpoint.ask("POST", path, json.dumps(body).encode()) as answer:
        return answer.status, json.loads(await whole(answer))


async def stream(endpoint, body):
    async with endpoint.ask("POST", "/v1/completions", json.dumps(body).encode()) as answer:
        found = [event async for event in events(answer) if event.data != DONE]
    assert [event.arrived for event in found] == sorted(event.arrived for event in found)
    return "".join(json.loads(event.data)["choices"][0]["text"] for event in found)


async def test_a_server_is_read_as_httpx_reads_it(server):
    expected = server.http.post("/v1/completions", json=BODY, headers={"Authorization": "Bearer key"}).json()
    endpoint = HttpEndpoint(server.url + "/v1", "key")
    status, body = await read(endpoint, BODY)
    assert (status, body["choices"], body["usage"]) == (200, expected["choices"], expected["usage"])
    assert await stream(endpoint, {**BODY, "stream": True}) == expected["choices"][0]["text"]
    assert len(endpoint._idle) == 1  # one connection was enough for all
    assert (await read(endpoint, {"max_tokens": -1}))[0] == 400
    assert (await read(HttpEndpoint(server.url), BODY))[0] == 401
    await endpoint.close()


async def test_an_application_is_read_as_a_server_is(server):
    expected = server.http.post("/v1/completions", json=BODY, headers={"Authorization": "Bearer key"}).json()
    async with fake_endpoint() as endpoint:
        status, body = await read(endpoint, BODY)
        assert (status, body["choices"], body["usage"]) == (200, expected["choices"], expected["usage"])
        assert await stream(endpoint, {**BODY, "stream": True}) == expected["choices"][0]["text"]
        assert (await read(endpoint, {}, "/v1/nowhere"))[0] == 404


async def test_a_stream_that_is_left_is_aborted(server):
    body = json.dumps({"prompt": "SLOW", "stream": True, "max_tokens": 20}).encode()
    async with HttpEndpoint(server.url, "key").ask("POST", "/v1/completions", body) as answer:
        async for _ in events(answer):
            break
    await asyncio.to_thread(server.wait_idle)
    assert server.fake.aborted


async def test_a_stream_of_an_application_that_is_left_is_aborted():
    body = json.dumps({"prompt": "SLOW", "stream": True, "max_tokens": 20}).encode()
    engine = make_engine()
    async with fake_endpoint(engine=engine) as endpoint:
        async with endpoint.ask("POST", "/v1/completions", body) as answer:
            async for _ in events(answer):
                break
        assert client_of(engine).aborted and not client_of(engine).live


async def text_of(endpoint, path):
    async with endpoint.ask("GET", path) as answer:
        return answer.status, (await whole(answer)).decode()


@asynccontextmanager
async def raw_server(*answers):
    """A server that sends each of `answers` to one request, and closes the connection."""
    left = list(answers)

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(left.pop(0))
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = listener.sockets[0].getsockname()[:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        listener.close()


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"


@pytest.mark.parametrize(
    "answer, expected",
    [
        (b"HTTP/1.0 200 OK\r\n\r\nuntil the end", "until the end"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "ok"),
        (CHUNKED + b"3\r\n wo\r\n0\r\n\r\n", "hello wo"),
        (CHUNKED, EndpointError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nhalf", EndpointError),
        (b"", EndpointError),
        (b"SSH-2.0-OpenSSH\r\n", EndpointError),
    ],
)
async def test_answers_of_other_servers(answer, expected):
    async with raw_server(answer) as url:
        endpoint = HttpEndpoint(url)
        if expected is not EndpointError:
            assert await text_of(endpoint, "/") == (200, expected)
            return
        with pytest.raises(EndpointError, match=r"127\.0\.0\.1"):
            await text_of(endpoint, "/")


async def test_a_kept_connection_that_died_is_replaced():
    whole_answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    async with raw_server(whole_answer, whole_answer) as url:
        endpoint = HttpEndpoint(url)
        assert await text_of(endpoint, "/") == (200, "ok")
        assert await text_of(endpoint, "/") == (200, "ok")  # the server has closed the first connection


async def test_nobody_there_is_a_sentence():
    with pytest.raises(EndpointError, match="no connection"):
        await text_of(HttpEndpoint("http://127.0.0.1:9"), "/")
    for url in ("unix:/nowhere/core.sock", "unix:/" + "x" * 200, "unix:/a%00b", "http://a..b", "http://" + "x" * 80):
        with pytest.raises(EndpointError, match="no connection"):
            await text_of(HttpEndpoint(url), "/")


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "http://", "http://x:99999999", "http://[::1"])
def test_a_wrong_url_is_refused(url):
    with pytest.raises(UserError, match="--url"):
        HttpEndpoint(url)


async def test_a_header_cannot_smuggle_another_one():
    with pytest.raises(UserError):
        async with HttpEndpoint("http://127.0.0.1:9").ask("GET", "/", headers={"X": "a\r\nY: b"}):
            pass
    with pytest.raises(UserError):
        HttpEndpoint("http://x", "key\nX: y")


def test_certificates_are_checked_unless_told_otherwise():
    for endpoint, mode in (
        (HttpEndpoint("https://x"), ssl.CERT_REQUIRED),
        (HttpEndpoint("https://x", verify=False), ssl.CERT_NONE),
    ):
        assert endpoint._tls.verify_mode == mode


async def test_events_across_any_cut():
    text = b": comment\r\nevent: x\r\ndata: one\r\n\r\ndata:two\ndata: lines\n\ndata: [DONE]\n\ndata: late\n\n"

    class Cut:
        status, headers, arrived = 200, {}, 0.0

        def __init__(self, size):
            self.size = size

        async def parts(self):
            for start in range(0, len(text), self.size):
                yield text[start : start + self.size]

    for size in range(1, len(text)):
        found = [event.data async for event in events(Cut(size))]
        assert found == [b"one", b"two\nlines", DONE]


async def test_a_stream_that_has_said_its_last_is_not_waited_for(monkeypatch):
    monkeypatch.setattr("core_commands.client.events.REST_SECONDS", 0.05)

    class Endless:
        status, headers, arrived = 200, {}, 0.0

        async def parts(self):
            yield b"data: one\n\ndata: [DONE]\n\n"
            await asyncio.get_running_loop().create_future()

    async with asyncio.timeout(5):
        assert [event.data async for event in events(Endless())] == [b"one", DONE]


@pytest.mark.parametrize(
    "end, is_whole",
    [
        (b"data: [DONE]\n\n", True),
        (b'data: {"choices": [{"text": "", "finish_reason": "stop"}]}\n\n', True),
        (b"", False),
    ],
)
async def test_a_stream_without_an_end_is_no_answer(end, is_whole):
    text = b'HTTP/1.1 200 OK\r\nConnection: close\r\n\r\ndata: {"choices": [{"text": "one"}]}\n\n' + end
    found = []
    ends = contextlib.nullcontext() if is_whole else pytest.raises(EndpointError, match="before the answer was whole")
    async with raw_server(text) as url, HttpEndpoint(url).ask("POST", "/") as answer:
        with ends:
            async for chunk, _ in chunks(answer):
                found += [piece.text for piece in chunk.pieces()]
    assert found == ["one"]


async def test_an_application_that_fails_is_an_answer_or_an_error():
    async def silent(scope, receive, send):
        return

    with pytest.raises(EndpointError, match="broke off"):
        await text_of(AppEndpoint(silent), "/")
