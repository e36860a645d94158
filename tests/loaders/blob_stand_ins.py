"""The listing and the ranged read of Google Cloud Storage (JSON) and Azure Blob Storage (XML), of one bucket."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

DATE = "Mon, 01 Jan 2024 00:00:00 GMT"


@contextmanager
def serving_blobs(bucket: str, objects: dict[str, bytes]) -> Iterator[str]:
    """Its address. objects: may change meanwhile."""

    class Handler(_Handler):
        pass

    Handler.bucket = bucket
    Handler.objects = objects
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def _generation(content: bytes) -> str:
    return str(int(hashlib.sha1(content).hexdigest()[:12], 16))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    bucket: str
    objects: dict[str, bytes]

    def log_message(self, *args: object) -> None:
        """Nothing on the console."""

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        if path == f"/storage/v1/b/{self.bucket}/o":
            self._google_list(query)
        elif path.startswith(f"/download/storage/v1/b/{self.bucket}/o/"):
            name = path.removeprefix(f"/download/storage/v1/b/{self.bucket}/o/")
            expected = query.get("ifGenerationMatch")
            self._content(name, is_same=expected in (None, _generation(self.objects.get(name, b""))))
        elif path.strip("/") == self.bucket and query.get("comp") == "list":
            self._azure_list(query)
        else:
            name = path.removeprefix(f"/{self.bucket}/")
            expected = self.headers.get("If-Match")
            self._content(name, is_same=expected in (None, _etag(self.objects.get(name, b""))))

    def _names(self, prefix: str) -> list[str]:
        return [name for name in sorted(self.objects) if name.startswith(prefix) and "/" not in name[len(prefix) :]]

    def _google_list(self, query: dict[str, str]) -> None:
        items = []
        for name in self._names(query.get("prefix", "")):
            content = self.objects[name]
            items.append({"name": name, "size": str(len(content)), "generation": _generation(content)})
        self._send(200, json.dumps({"items": items}).encode(), {"Content-Type": "application/json"})

    def _azure_list(self, query: dict[str, str]) -> None:
        blobs = ""
        for name in self._names(query.get("prefix", "")):
            content = self.objects[name]
            properties = (
                f"<Last-Modified>{DATE}</Last-Modified><Etag>{escape(_etag(content))}</Etag>"
                f"<Content-Length>{len(content)}</Content-Length><BlobType>BlockBlob</BlobType>"
            )
            blobs += f"<Blob><Name>{escape(name)}</Name><Properties>{properties}</Properties></Blob>"
        found = f"<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker /></EnumerationResults>"
        document = f'<?xml version="1.0" encoding="utf-8"?>{found}'
        self._send(200, document.encode(), {"Content-Type": "application/xml"})

    def _content(self, name: str, *, is_same: bool) -> None:
        content = self.objects.get(name)
        if content is None:
            self._send(404, b"", {"x-ms-error-code": "BlobNotFound"})
            return
        if not is_same:
            self._send(412, b"", {"x-ms-error-code": "ConditionNotMet"})
            return
        asked = self.headers.get("Range") or self.headers.get("x-ms-range") or f"bytes=0-{len(content) - 1}"
        begin, end = (int(number) for number in asked.removeprefix("bytes=").split("-"))
        end = min(end, len(content) - 1)
        headers = {
            "Content-Range": f"bytes {begin}-{end}/{len(content)}",
            "ETag": _etag(content),
            "Last-Modified": DATE,
            "x-ms-blob-type": "BlockBlob",
            "Content-Type": "application/octet-stream",
        }
        self._send(206, content[begin : end + 1], headers)

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _etag(content: bytes) -> str:
    return f'"0x{_generation(content)}"'
