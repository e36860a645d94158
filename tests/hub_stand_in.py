"""A model hub on this machine: the part of the hub's HTTP interface that its client uses to list and download files."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

LARGE = 1000
"""Files of more bytes are kept apart (LFS), under their sha256."""


@dataclass
class StandIn:
    """Repositories and what happened to them.

    files:    bytes by name, by `owner/model`, by revision.
    tokens:   the token that a repository needs.
    gated:    repositories whose conditions the token's account has not accepted.
    cuts:     after how many more bytes of a file the connection breaks, each number once.
    requests: (method, path, range header) of every request.
    """

    files: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    cuts: dict[str, list[int]] = field(default_factory=dict)
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    endpoint: str = ""

    def add(self, name: str, files: dict[str, bytes], revision: str = "main") -> None:
        self.files.setdefault(name, {})[revision] = files

    def fetched(self) -> set[str]:
        """Names of the files whose content was asked for."""
        asked = [path for method, path, _ in self.requests if method == "GET" and "/resolve/" in path]
        return {path.split("/resolve/")[1].partition("/")[2] for path in asked}


def commit_of(name: str, revision: str) -> str:
    return hashlib.sha1(f"{name}@{revision}".encode()).hexdigest()


@contextmanager
def serving(hub: StandIn) -> Iterator[StandIn]:
    """Serve it on a port of this machine."""

    class Handler(_Handler):
        stand_in = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    stand_in: StandIn

    def log_message(self, *args: object) -> None:
        """Nothing on the console."""

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.stand_in.requests.append((self.command, path, self.headers.get("Range", "")))
        if path.startswith("/api/models/"):
            name, _, rest = self._named(path.removeprefix("/api/models/"))
            kind, _, revision = rest.partition("/")
            self._list(name, kind, unquote(revision) or "main")
        else:
            name, _, rest = self._named(path.removeprefix("/"))
            revision, _, file = rest.removeprefix("resolve/").partition("/")
            self._send_file(name, revision, file, with_body=with_body)

    @staticmethod
    def _named(path: str) -> tuple[str, str, str]:
        owner, _, rest = path.partition("/")
        model, slash, rest = rest.partition("/")
        return f"{owner}/{model}", slash, rest

    def _revision(self, name: str, revision: str) -> str | None:
        """The branch behind a branch or commit; None after an error was sent."""
        hub = self.stand_in
        token = hub.tokens.get(name)
        if name not in hub.files or (token and self.headers.get("Authorization") != f"Bearer {token}"):
            self._send(401, b"{}", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
            return None
        if name in hub.gated:
            self._send(403, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"})
            return None
        for branch in hub.files[name]:
            if revision in (branch, commit_of(name, branch)):
                return branch
        self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        return None

    def _list(self, name: str, kind: str, revision: str) -> None:
        branch = self._revision(name, revision)
        if branch is None:
            return
        files = self.stand_in.files[name][branch]
        entries = [_entry(file, content) for file, content in files.items()]
        if kind == "tree":
            document: object = entries
        else:
            siblings = [{"rfilename": entry["path"], "size": entry["size"]} for entry in entries]
            document = {"id": name, "sha": commit_of(name, branch), "siblings": siblings, "private": False, "tags": []}
        self._send(200, json.dumps(document).encode(), {"Content-Type": "application/json"})

    def _send_file(self, name: str, revision: str, file: str, *, with_body: bool) -> None:
        branch = self._revision(name, revision)
        if branch is None:
            return
        commit = commit_of(name, branch)
        content = self.stand_in.files[name][branch].get(file)
        if content is None:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
            return
        headers = {"X-Repo-Commit": commit, "ETag": f'"{_entry(file, content)["oid"]}"', "Accept-Ranges": "bytes"}
        if len(content) > LARGE:
            headers |= {"X-Linked-Etag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Linked-Size": str(len(content))}
        begin = 0
        status = 200
        asked = self.headers.get("Range")
        if asked:
            begin = int(asked.removeprefix("bytes=").rstrip("-"))
            status = 206
            headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        cuts = self.stand_in.cuts.get(file, []) if with_body else []
        body = content[begin:]
        self._send(status, body, headers, stop_after=cuts.pop(0) if cuts else None, with_body=with_body)

    def _send(
        self,
        status: int,
        body: bytes,
        headers: dict[str, str],
        *,
        stop_after: int | None = None,
        with_body: bool = True,
    ) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body and self.command != "HEAD":
            self.wfile.write(body[:stop_after])
        if stop_after is not None:
            self.close_connection = True


def _entry(file: str, content: bytes) -> dict[str, object]:
    entry: dict[str, object] = {
        "type": "file",
        "path": file,
        "size": len(content),
        "oid": hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest(),
    }
    if len(content) > LARGE:
        entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
    return entry
