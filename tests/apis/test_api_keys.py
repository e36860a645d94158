"""What needs a key needs it under every root path, spelling and method; whoever carries one is known by it."""

import asyncio
import http.client
from typing import Any
from urllib.parse import unquote, urlparse

import pytest
from starlette.types import Message

from core_apis.app import create_app
from core_apis.callers.authentication import Authentication
from core_apis.context import user_of
from core_apis.server.middleware import OPEN
from core_config.served.server_config import ServerConfig
from core_frontend.async_engine import AsyncEngine
from tests.apis.conftest import run_server
from tests.apis.fake_engine import make_engine

ROOTS = ["", "/", "/v", "/v1", "/proxy", "/a/b", "/health"]
GUARDED = ["/v1/models", "/v1/models/alias", "/v1/completions", "/v1/chat/completions", "/reset_prefix_cache"]
GUARDED += ["/tokenize", "/detokenize", "/nothing", "/", "", "*"]
TRICKS = ["/{}", "//{}", "/./{}", "/health/../{}", "/%2e%2e/{}", "/health%2f..%2f{}", "/{}/", "/{};a", "/{}?a=/health"]
TRICKS += ["/health/{}", "/health%00{}", "/HEALTH", "/health%0a", "/health/", "/{}#/health", "/%76{}"]
METHODS = ["GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE", "BREW"]


async def call(
    app: Any, method: str, target: str, headers: dict[str, str] | None = None, kind: str = "http"
) -> list[Message]:
    """What `app` sends for one request; the scope is as uvicorn makes it."""
    path, _, query = target.partition("?")
    sent: list[Message] = []
    scope = {
        "type": kind,
        "method": method,
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in (headers or {}).items()],
        "state": {},
        "http_version": "1.1",
        "scheme": "http",
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1),
    }

    bodies = [{"type": "http.request", "body": b"{}", "more_body": False}]

    async def receive() -> Message:
        if not bodies:
            await asyncio.Event().wait()
        return bodies.pop()

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent


def app_of(engine: AsyncEngine, **settings: Any) -> Any:
    return create_app(engine, ServerConfig(**settings), engine.model_config)


@pytest.mark.parametrize("root", ROOTS)
async def test_strangers_reach_what_is_open_and_nothing_else(root: str) -> None:
    engine = make_engine()
    app = app_of(engine, api_keys=("k",), root_path=root, disable_ui=True)
    prefix = root.rstrip("/")
    targets = {trick.format(path.strip("/")) for path in GUARDED for trick in TRICKS}
    targets |= {prefix + target for target in targets} | {"/" + prefix + target for target in targets} | {*GUARDED}
    # What the router itself takes for one of the open routes, such as '/health/../v1' never is.
    served = {f"{before}{path}{after}" for path in OPEN for before in ("", prefix) for after in ("", "%0a")}
    let_in = []
    for target in sorted(targets - served):
        for method in METHODS:
            status = (await call(app, method, target))[0]["status"]
            if status != 401:
                let_in.append((method, target, status))
    assert not let_in
    for path in OPEN:
        for target in {path, prefix + path} if prefix != "/health" else {prefix + path}:
            assert [(await call(app, method, target))[0]["status"] for method in ("GET", "HEAD")] == [200, 200], target
    await engine.close()


@pytest.mark.parametrize("root", ["/", "/v", "/v/", "/a/b"])
async def test_a_key_opens_every_route_with_and_without_the_root_path(root: str) -> None:
    engine = make_engine()
    app = app_of(engine, api_keys=("k",), root_path=root)
    for path in ("/v1/models", root.rstrip("/") + "/v1/models"):
        assert (await call(app, "GET", path, {"authorization": "Bearer k"}))[0]["status"] == 200
    await engine.close()


async def test_documentation_is_open_where_there_is_any() -> None:
    engine = make_engine()
    pages = ("/docs", "/redoc", "/openapi.json")
    app = app_of(engine, api_keys=("k",))
    assert [(await call(app, "GET", page))[0]["status"] for page in pages] == [200] * 3
    app = app_of(engine, api_keys=("k",), disable_fastapi_docs=True)
    assert [(await call(app, "GET", page))[0]["status"] for page in pages] == [401] * 3
    await engine.close()


async def test_web_sockets_need_a_key_too() -> None:
    reached: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])

    guarded = Authentication(app, ["k"])
    (answer,) = await call(guarded, "GET", "/v1/realtime", kind="websocket")
    assert answer["type"] == "websocket.close" and not reached
    await call(guarded, "GET", "/v1/realtime", {"authorization": "Bearer k"}, kind="websocket")
    assert reached == ["/v1/realtime"]


@pytest.mark.parametrize(
    ("given", "known"),
    [
        (b"Bearer k", True),
        (b"bearer  k ", True),
        ("Bearer schlüssel-🔑".encode(), True),
        ("Bearer schlüssel".encode(), True),
        ("Bearer schlüssel".encode("latin-1"), True),
        (b"Bearer schl\xffssel", False),
        (b"Bearer kk", False),
        (b"Bearer ", False),
        (b"Bearer", False),
        (b"Basic k", False),
        (b"k", False),
        (b"", False),
    ],
)
async def test_keys_are_bytes(given: bytes, known: bool) -> None:
    reached: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["state"]["api_key"])

    async def send(message: Message) -> None:
        assert message.get("status", 401) == 401

    scope = {"type": "http", "method": "GET", "path": "/x", "headers": [(b"authorization", given)]}
    await Authentication(app, ["k", "schlüssel-🔑", "schlüssel"])(scope, send, send)  # type: ignore[arg-type]
    assert bool(reached) == known


async def test_a_key_is_one_user_however_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    app = app_of(engine, api_keys=("k", "other"))
    users: list[str] = []
    monkeypatch.setattr("core_apis.pipeline.user_of", lambda *given: users.append(user_of(*given)) or "u")
    monkeypatch.setattr("core_apis.intake.read_body", _a_chat)
    for written in ("Bearer k", "bearer k", "BEARER   k", "Bearer other"):
        await call(app, "POST", "/v1/chat/completions", {"authorization": written})
    assert users[0] == users[1] == users[2] != users[3]
    await engine.close()


async def _a_chat(request: Any, body: Any, *more: Any) -> list[bytes]:
    return [b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}']


def test_targets_as_they_come_over_the_network() -> None:
    with run_server(ServerConfig(api_keys=("k",), root_path="/v", uvicorn_log_level="critical")) as server:
        parts = urlparse(server.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
        for target in ("/v1/models", f"{server.url}/v1/models", "//v1/models", "/%76/v1/models", "/v/%761/models"):
            for method in ("GET", "POST", "HEAD", "OPTIONS"):
                connection.putrequest(method, target, skip_host=True)
                connection.putheader("Host", "health")
                connection.endheaders()
                answer = connection.getresponse()
                answer.read()
                assert answer.status == 401, (method, target)
        connection.close()
