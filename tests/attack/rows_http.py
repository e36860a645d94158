"""HTTP itself: headers, content types, lengths, chunks, lines."""

from collections.abc import Iterator

from tests.attack.make import completion
from tests.attack.row import CLOSED, Row
from tests.attack.rows_texts import COMPLETIONS, MB

EITHER_BODY = frozenset({CLOSED, 200, 400})
LARGE_HEADER = frozenset({CLOSED, 400, 413, 431})
TOO_LARGE = frozenset({CLOSED, 413})
PIECE = b" " * 65536
LIMIT = 32 * 2**20


def headers(count: int, length: int = 1) -> tuple[tuple[str, bytes], ...]:
    """So many headers, each with a value of `length` bytes."""
    return tuple((f"X-{number}", b"x" * length) for number in range(count))


def over_the_limit() -> Iterator[bytes]:
    """Chunks of a body that is larger than a server takes, and without an end."""
    yield b'{"prompt": "'
    for _ in range(4 * LIMIT // len(PIECE)):
        yield PIECE


def in_small_chunks() -> Iterator[bytes]:
    """A good body, a byte a chunk."""
    return (bytes([byte]) for byte in completion())


CONTENT_TYPES = [
    (b"text/plain", {415}),
    (b"application/x-www-form-urlencoded", {415}),
    (b"multipart/form-data; boundary=x", {415}),
    (b"application/xml", {415}),
    (b"application/json; charset=utf-16", {200, 400, 415}),
    (b"application/JSON", {200}),
    (b"application/vnd.api+json", {200}),
    (b"", {200, 415}),
    (b"\xff\xfe", {400, 415}),
]

HEADERS = [
    Row(
        "a header of 10 MB", COMPLETIONS, completion(), (("X-Large", b"x" * 10 * MB),), allowed=LARGE_HEADER, plain=True
    ),
    Row("a header of 100,000 bytes", COMPLETIONS, completion(), headers(1, 100_000), allowed=LARGE_HEADER, plain=True),
    Row("100,000 headers", COMPLETIONS, completion(), headers(100_000), allowed=LARGE_HEADER, plain=True, seconds=5),
    Row("a target of 1 MB", "/" + "x" * MB, method="GET", allowed=LARGE_HEADER | {404, 414}, plain=True),
    Row("a target of 50,000 bytes", "/" + "x" * 50_000, method="GET", allowed=LARGE_HEADER | {404, 414}, plain=True),
    Row(
        "a query of 50,000 fields",
        "/health?" + "&".join("a=b" for _ in range(10_000)),
        method="GET",
        allowed=LARGE_HEADER | {200, 414},
        plain=True,
    ),
    Row(
        "a request id header that ends a line",
        COMPLETIONS,
        completion(),
        (("X-Request-Id", b"abc\ndef: 1"),),
        allowed=frozenset({CLOSED, 200, 400}),
        plain=True,
    ),
    Row(
        "a request id header of control letters",
        COMPLETIONS,
        completion(),
        (("X-Request-Id", b"\x1b[31m"),),
        allowed=frozenset({CLOSED, 200, 400}),
        plain=True,
    ),
    Row("a header's name with a space", COMPLETIONS, completion(), (("X y", b"1"),), allowed=EITHER_BODY, plain=True),
    Row("a header without a name", COMPLETIONS, completion(), (("", b"1"),), allowed=EITHER_BODY, plain=True),
    Row(
        "an Expect that cannot be met",
        COMPLETIONS,
        completion(),
        (("Expect", b"the impossible"),),
        allowed=EITHER_BODY | {417},
        plain=True,
    ),
    Row(
        "an upgrade to a web socket",
        COMPLETIONS,
        b"",
        (("Connection", b"Upgrade"), ("Upgrade", b"websocket"), ("Sec-WebSocket-Key", b"eA==")),
        method="GET",
        allowed=frozenset({400, 401, 405, 426}),
        plain=True,
    ),
]

LENGTHS = [
    Row(
        "a length of 100 GB",
        COMPLETIONS,
        b"{}",
        (("Content-Length", b"100000000000"),),
        allowed=TOO_LARGE | {400},
        plain=True,
    ),
    Row("a negative length", COMPLETIONS, b"{}", (("Content-Length", b"-1"),), allowed=EITHER_BODY, plain=True),
    Row(
        "a length that is no number", COMPLETIONS, b"{}", (("Content-Length", b"two"),), allowed=EITHER_BODY, plain=True
    ),
    Row(
        "two lengths",
        COMPLETIONS,
        b"{}",
        (("Content-Length", b"2"), ("Content-Length", b"3")),
        allowed=EITHER_BODY,
        plain=True,
    ),
    Row(
        "a length and chunks",
        COMPLETIONS,
        b"0\r\n\r\n",
        (("Content-Length", b"5"), ("Transfer-Encoding", b"chunked")),
        allowed=frozenset({CLOSED, 400}),
        plain=True,
    ),
    Row(
        "chunks whose length is no number",
        COMPLETIONS,
        b"zz\r\n{}\r\n",
        (("Transfer-Encoding", b"chunked"), ("Content-Length", b"")),
        allowed=frozenset({CLOSED, 400}),
        plain=True,
    ),
    Row(
        "a body over the limit", COMPLETIONS, lambda: b" " * (LIMIT + 1), allowed=TOO_LARGE, names=("body",), large=True
    ),
    Row(
        "chunks over the limit that never end",
        COMPLETIONS,
        over_the_limit,
        allowed=TOO_LARGE,
        names=("body",),
        large=True,
    ),
    Row("a byte a chunk", COMPLETIONS, in_small_chunks, allowed=frozenset({200})),
    Row(
        "a compressed body", COMPLETIONS, b"\x1f\x8b\x08", (("Content-Encoding", b"gzip"),), allowed=EITHER_BODY | {415}
    ),
    Row("a body to GET", "/health", completion(), method="GET", allowed=EITHER_BODY),
]


def rows() -> list[Row]:
    """All of this theme."""
    types = [
        Row(
            f"the content type {kind!r}",
            COMPLETIONS,
            completion(),
            (("Content-Type", kind),),
            allowed=frozenset(allowed),
            names=("content type", "content-type"),
            plain=kind.startswith(b"\xff"),
        )
        for kind, allowed in CONTENT_TYPES
    ]
    return [*types, *HEADERS, *LENGTHS]
