"""Where and how the server can be reached: unix sockets, TLS files that change, middleware of the user's own, its load."""

import asyncio
import socket
import ssl
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop

from core.api.errors import UserError
from core_apis.app import create_app
from core_apis.server.own_middleware import load_middleware
from core_apis.server.sockets import bind_path, close_listener, url
from core_apis.server.tls_refresh import TlsRefresh, tls_context
from core_config.served.server_config import ServerConfig
from tests.apis.conftest import RunningServer
from tests.apis.fake_engine import make_engine

Starter = Callable[..., Any]


def quiet(**settings: Any) -> ServerConfig:
    return ServerConfig(uvicorn_log_level="warning", **settings)


def make_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    key = folder / "key.pem"
    cert = folder / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", str(key)]
    made = subprocess.run([*command, "-out", str(cert), "-subj", f"/CN={name}"], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("openssl cannot make a certificate here")
    return key, cert


def test_uds_serves_over_the_loop_of_the_server(tmp_path: Path) -> None:
    path = str(tmp_path / "server.sock")
    listener = bind_path(path)

    async def main() -> bytes:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readline())
            writer.close()

        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader(), answer), sock=listener
        )
        async with server:
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(b"hi\n")
            return await reader.readline()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == b"hi\n"


def test_uds(start_server: Starter, tmp_path: Path) -> None:
    path = str(tmp_path / "server.sock")
    with start_server(quiet(uds=path)):
        with httpx.Client(transport=httpx.HTTPTransport(uds=path), base_url="http://localhost") as client:
            answer = client.post("/v1/completions", json={"prompt": "Hi"})
        assert answer.status_code == 200 and answer.json()["choices"][0]["text"].startswith("Hello")
        with pytest.raises(UserError, match=r"--uds is .*another server"):
            bind_path(path)


def test_uds_of_a_server_that_is_gone_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "server.sock"
    bind_path(str(path)).close()
    assert path.is_socket()
    bind_path(str(path)).close()
    config = quiet(uds=str(path))
    with socket.socket(socket.AF_UNIX) as listener:
        assert url(listener, config) == f"unix:{path}"
    close_listener(config)
    assert not path.exists()
    path.write_text("mine")
    for wrong in (path, tmp_path / "no" / "folder", tmp_path / ("x" * 200)):
        with pytest.raises(UserError, match="--uds is"):
            bind_path(str(wrong))
    assert path.read_text() == "mine"


def peer(running: RunningServer) -> str:
    """The name in the certificate that a new connection gets."""
    address = httpx.URL(running.url)
    return ssl.get_server_certificate((address.host, address.port))


def test_tls_files_are_read_again_when_they_change(start_server: Starter, tmp_path: Path) -> None:
    key, cert = make_certificate(tmp_path, "first")
    config = quiet(ssl_keyfile=str(key), ssl_certfile=str(cert), enable_ssl_refresh=True)
    with start_server(config) as running:
        first = peer(running)
        assert first == cert.read_text()
        time.sleep(1.2)  # the server looks once a second
        make_certificate(tmp_path, "second")
        deadline = time.monotonic() + 5
        while peer(running) == first:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert peer(running) == cert.read_text()


def greets(context: ssl.SSLContext, cert: Path, key: Path) -> bool:
    """Whether a client with this certificate is let in by connections that begin in `context`."""
    inner = ssl.create_default_context()
    inner.check_hostname, inner.verify_mode = False, ssl.CERT_NONE
    inner.load_cert_chain(cert, key)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(to_server, to_client, server_side=True)
    client = inner.wrap_bio(to_client, to_server, server_hostname="server")
    for _ in range(4):
        for end in (client, server):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                return False
    return True


def test_tls_files_are_replaced_whole_or_not_at_all(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    (first_key, first), (second_key, second) = (make_certificate(folder, folder.name) for folder in folders)
    authorities = tmp_path / "authorities.pem"
    authorities.write_text(first.read_text())
    config = quiet(ssl_certfile=str(first), ssl_keyfile=str(first_key), ssl_ca_certs=str(authorities), ssl_cert_reqs=2)
    context = tls_context(config)
    refresh = TlsRefresh(config, context)
    assert greets(context, first, first_key) and not greets(context, second, second_key)
    with caplog.at_level("INFO", "core_apis"):
        authorities.write_text("broken")
        refresh.check()
        refresh.check()
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        assert greets(context, first, first_key)
        authorities.write_text(second.read_text())
        refresh.check()
    assert greets(context, second, second_key)
    assert not greets(context, first, first_key), "its authority was taken out"


def test_nobody_is_asked_for_the_password_of_a_key(tmp_path: Path) -> None:
    key, cert = make_certificate(tmp_path, "server")
    locked = tmp_path / "locked.pem"
    subprocess.run(
        ["openssl", "rsa", "-aes128", "-passout", "pass:secret", "-in", str(key), "-out", str(locked)],
        capture_output=True, check=True,
    )  # fmt: skip
    with pytest.raises(UserError, match="the key is encrypted"):
        tls_context(quiet(ssl_keyfile=str(locked), ssl_certfile=str(cert)))


class Stamp:
    """Middleware that marks answers."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def send_stamped(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"].append((b"x-stamp", b"class"))
            await send(message)

        await self.app(scope, receive, send_stamped)


async def stamp(request: Any, call_next: Any) -> Any:
    answer = await call_next(request)
    answer.headers["x-function"] = request.url.path
    return answer


def test_middleware_of_the_users_own(start_server: Starter) -> None:
    paths = ("tests.apis.test_edges.Stamp", "tests.apis.test_edges:stamp")
    with start_server(quiet(middleware=paths)) as running:
        headers = running.http.get("/health").headers
        assert (headers["x-stamp"], headers["x-function"]) == ("class", "/health")


async def fail(request: Any, call_next: Any) -> Any:
    raise RuntimeError("a defect of the user's own")


def test_middleware_that_fails_is_one_answer_and_the_client_knows_that_the_connection_ends(
    start_server: Starter,
) -> None:
    with start_server(quiet(middleware=("tests.apis.test_edges.fail",))) as running:
        for _ in range(3):
            answer = running.http.get("/health")
            assert answer.status_code == 500 and answer.headers["connection"] == "close"


@pytest.mark.parametrize("path", ["nowhere", "no.such.module", "tests.apis.test_edges:absent", "os:sep", ":", ""])
def test_middleware_that_is_none_is_told(path: str) -> None:
    with pytest.raises(UserError, match="--middleware"):
        load_middleware([path])


class Unmade:
    """Middleware that wants more than an application."""

    def __init__(self, app: Any, option: int) -> None:
        """Never reached."""


class Uncallable:
    """No middleware, but a class."""

    def __init__(self, app: Any) -> None:
        """With an application."""


@pytest.mark.parametrize(("name", "told"), [("Unmade", "cannot be made .*'option'"), ("Uncallable", "__call__")])
async def test_middleware_that_cannot_be_made_ends_the_start(name: str, told: str) -> None:
    engine = make_engine()
    with pytest.raises(UserError, match=f"--middleware tests.apis.test_edges:{name}: .*{told}"):
        create_app(engine, quiet(middleware=(f"tests.apis.test_edges:{name}",)), engine.model_config)


def test_load_counts_prompts_that_live(start_server: Starter, server: RunningServer) -> None:
    assert server.http.get("/load").status_code == 404
    with start_server(quiet(enable_server_load_tracking=True)) as running:
        assert running.http.get("/load").json() == {"server_load": 0}
        with running.openai().completions.create(model="alias", prompt=["SLOW", "SLOW"], stream=True) as stream:
            next(iter(stream))
            assert running.http.get("/load").json() == {"server_load": 2}
        running.wait_idle()
        assert running.http.get("/load").json() == {"server_load": 0}


def test_ciphers_are_the_users_own(tmp_path: Path) -> None:
    key, cert = make_certificate(tmp_path, "first")
    config = quiet(ssl_keyfile=str(key), ssl_certfile=str(cert), ssl_ciphers="ECDHE-RSA-AES256-GCM-SHA384")
    old = [cipher["name"] for cipher in tls_context(config).get_ciphers() if cipher["protocol"] != "TLSv1.3"]
    assert old == ["ECDHE-RSA-AES256-GCM-SHA384"]
    with pytest.raises(UserError, match="--ssl-ciphers is 'NONE-SUCH', which names no cipher"):
        tls_context(quiet(ssl_keyfile=str(key), ssl_certfile=str(cert), ssl_ciphers="NONE-SUCH"))
