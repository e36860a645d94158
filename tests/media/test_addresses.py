"""URLs of pictures that lead inside open no connection."""

import http.server
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.api.errors import RequestError
from core_media.config import MediaConfig
from core_media.reading import fetching
from core_media.reading.fetching import Fetcher, is_public

DOMAIN = "pictures.example"
PRIVATE = [
    "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "255.255.255.255",
    "224.0.0.1", "192.0.2.1", "198.18.0.1", "::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "ff02::1", "::ffff:127.0.0.1",
    "::ffff:169.254.169.254", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2001:db8::1", "not an address",
]  # fmt: skip
URLS = [
    "http://127.0.0.1/", "http://2130706433/", "http://0x7f000001/", "http://017700000001/", "http://127.1/", "http://0/",
    "http://[::1]/", "http://[::ffff:127.0.0.1]/", "http://[::ffff:7f00:1]/", "http://localhost/", "http://localhost./",
    "http://169.254.169.254/latest/meta-data/", "http://metadata.google.internal/", "http://[fd00:ec2::254]/",
    "http://127.0.0.1:8000/", "http://0.0.0.0:80/", "http://127.0.0.1.nip.io/", "http://inside.pictures.example/",
    "http://pictures.example.evil.test/", "http://evilpictures.example/", "http://pictures.example@127.0.0.1/",
    "http://user:word@pictures.example/", "http://pictures.example:80@127.0.0.1/", "http://127.0.0.1#pictures.example",
    "http://127.0.0.1?pictures.example", "http://pictures.example:22/", "http://pictures.example:8080/",
    "https://pictures.example:80/", "http://pictures.example:0/", "http://pictures.example:99999/",
    "http://pictures.example\\@127.0.0.1/", "http:\\\\127.0.0.1/", "http://127.0.0.1\t/", "http://pict ures.example/",
    "http://pictures.example\r\nHost: inside/", "ftp://pictures.example/", "gopher://pictures.example/", "//127.0.0.1/",
    "file://pictures.example/etc/passwd", "file:///etc/passwd", "FILE:///etc/passwd", "file:/etc/passwd", "dict://127.0.0.1/",
    "ldap://127.0.0.1/", "jar:http://127.0.0.1!/", "http:///", "http://", "https://", "http://.", "http://[", "http://[::1",
    "http://①②⑦.⓪.⓪.①/", "http://127。0。0。1/", "http://pictures。example/", "http://xn--/", "unix:///var/run/docker.sock",
    "http+unix://%2fvar%2frun/", "javascript:1", "blob:http://127.0.0.1/", "HTTP://127.0.0.1", "h\u0442tp://127.0.0.1/",
]  # fmt: skip


def config(**changes: object) -> MediaConfig:
    given = {"domains": (DOMAIN,), **changes}
    return MediaConfig(model="", model_type="llava", placeholder="<image>", token_id=1, limits={"image": 1}, **given)


@pytest.fixture(autouse=True)
def connections(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Connections that were tried; none is made."""
    tried: list[object] = []

    def refuse(address: object, *rest: object, **more: object) -> socket.socket:
        tried.append(address)
        raise OSError("no connection in this test")

    monkeypatch.setattr(fetching.socket, "create_connection", refuse)
    return tried


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_are_not_public(address: str) -> None:
    assert not is_public(address)
    assert is_public("93.184.216.34")
    assert is_public("2606:2800:220:1::1")


@pytest.mark.parametrize("url", URLS)
def test_urls_that_lead_inside_open_no_connection(url: str, connections: list[object]) -> None:
    fetcher = Fetcher(config(), resolve=lambda host, port: ["93.184.216.34"])
    with pytest.raises(RequestError):
        fetcher.fetch(url)
    assert connections == []


@pytest.mark.parametrize("addresses", [["10.0.0.1"], ["93.184.216.34", "127.0.0.1"], ["::ffff:10.0.0.1"], []])
def test_every_address_of_a_name_is_public(addresses: list[str], connections: list[object]) -> None:
    fetcher = Fetcher(config(), resolve=lambda host, port: addresses)
    with pytest.raises(RequestError, match="not public"):
        fetcher.fetch(f"http://{DOMAIN}/a.png")
    assert connections == []


def test_a_name_is_resolved_once_and_its_address_is_dialled(connections: list[object]) -> None:
    answers = iter([["93.184.216.34"], ["127.0.0.1"]])
    fetcher = Fetcher(config(), resolve=lambda host, port: next(answers))
    with pytest.raises(RequestError, match="gave no file"):
        fetcher.fetch(f"http://{DOMAIN}/a.png")
    assert connections == [("93.184.216.34", 80)]


def test_nothing_is_fetched_without_domains(connections: list[object]) -> None:
    with pytest.raises(RequestError, match="--allowed-media-domains"):
        Fetcher(config(domains=())).fetch(f"https://{DOMAIN}/a.png")
    assert connections == []


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A server that stands for every public address; the paths that were requested."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            if self.path.startswith("/to?"):
                self.send_response(302)
                self.send_header("Location", self.path[4:])
                self.end_headers()
                return
            self.send_response(404 if self.path == "/none" else 200)
            self.send_header("Content-Type", "image/png")
            self.end_headers()
            if self.path == "/endless":
                try:
                    while True:
                        self.wfile.write(b"x" * 65536)
                except OSError:
                    return
            self.wfile.write(b"picture")

        def log_message(self, *rest: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.undo()

    def connect(address: tuple[str, int], timeout: float) -> socket.socket:
        made = socket.socket()
        made.settimeout(timeout)
        made.connect(server.server_address)
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetching.socket, "create_connection", connect)
        yield asked
    server.shutdown()
    server.server_close()


def test_pictures_of_allowed_hosts_are_fetched_within_limits(site: list[str]) -> None:
    fetcher = Fetcher(config(max_bytes=1 << 20), resolve=lambda host, port: ["93.184.216.34"])
    base = f"http://{DOMAIN}"
    assert fetcher.fetch(f"{base}/a.png") == (b"picture", "image/png")
    assert fetcher.fetch(f"{base}/to?/b.png") == (b"picture", "image/png")
    for path, sentence in [
        ("/none", "status 404"),
        ("/endless", "more than 1048576 bytes"),
        ("/to?http://127.0.0.1/", "none of those"),
        ("/to?file:///etc/passwd", "scheme"),
        (f"/to?http://{DOMAIN}:22/", "port"),
        ("/to?/to?/to?/to?/to?/a.png", "redirects"),
    ]:
        with pytest.raises(RequestError, match=sentence):
            fetcher.fetch(base + path)


def test_files_lie_below_the_directory_without_links_out(tmp_path: Path) -> None:
    root = tmp_path / "allowed"
    root.mkdir()
    (root / "a.png").write_bytes(b"picture")
    (tmp_path / "secret").write_bytes(b"secret")
    (root / "link").symlink_to(tmp_path / "secret")
    (root / "inner").symlink_to(root / "a.png")
    fetcher = Fetcher(config(local_path=str(root)))
    assert fetcher.fetch((root / "a.png").as_uri()) == (b"picture", "")
    assert fetcher.fetch((root / "inner").as_uri()) == (b"picture", "")
    for url in [
        f"file://{tmp_path}/secret", f"file://{root}/link", f"file://{root}/../secret", f"file://{root}/%2e%2e/secret",
        f"file://{root}", f"file://{root}/none", "file:///dev/zero", "file:///proc/self/environ", f"file://{root}/a.png%00",
    ]:  # fmt: skip
        with pytest.raises(RequestError):
            fetcher.fetch(url)
