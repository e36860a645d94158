"""Reading of a file that is uploaded as multipart/form-data.

Owns: the form of such a body, and its limits. Never does: decide where the bytes go, or keep more of them than one piece.
Called by: the route of uploads.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from email.message import Message

from core.api.errors import RequestError

MOST_PARTS = 16
LONGEST_HEADER = 8 * 1024
LONGEST_FIELD = 64 * 1024
"""Limits in bytes of a part's headers, and of a part that is no file."""
BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{1,70}")

Sink = Callable[[bytes], Awaitable[None]]


@dataclass
class Upload:
    """What a body has but the bytes of its file. fields: the parts that are no files. filename: None without a file."""

    fields: dict[str, str] = field(default_factory=dict)
    filename: str | None = None


def boundary_of(content_type: str) -> bytes:
    """Return the boundary that the content type names. Raises RequestError (415)."""
    message = Message()
    message["content-type"] = content_type
    boundary = message.get_param("boundary")
    is_known = isinstance(boundary, str) and BOUNDARY.fullmatch(boundary) is not None
    if message.get_content_type() != "multipart/form-data" or not is_known:
        raise RequestError(
            "The content type is not 'multipart/form-data' with a boundary; send the file as a form does.",
            status=415,
            code="unsupported_media_type",
        )
    return str(boundary).encode()


class UploadReader:
    """Reader of one body. sink: takes the bytes of its file, in order."""

    def __init__(self, boundary: bytes, sink: Sink) -> None:
        self.upload = Upload()
        self._limit = b"\r\n--" + boundary
        # The first boundary has no line before it.
        self._buffer = bytearray(b"\r\n")
        self._sink = sink
        self._num_parts = 0
        self._name: str | None = None
        self._is_file = False
        self._text = bytearray()
        self._state = "preamble"

    async def read(self, stream: AsyncIterator[bytes]) -> Upload:
        """Read the whole body. Raises RequestError for one that is malformed, or ends too early."""
        async for piece in stream:
            self._buffer += piece
            while await self._advance():
                pass
        if self._state != "end":
            raise _malformed("it ends before its last boundary")
        return self.upload

    async def _advance(self) -> bool:
        """Handle what the buffer has; False when more bytes are needed."""
        if self._state == "end":
            self._buffer.clear()
            return False
        if self._state == "headers":
            return self._read_headers()
        if self._state == "boundary":
            return self._read_boundary()
        place = self._buffer.find(self._limit)
        # The end of the buffer may be the beginning of a boundary.
        size = place if place >= 0 else max(len(self._buffer) - len(self._limit) + 1, 0)
        await self._take(bytes(self._buffer[:size]))
        del self._buffer[:size]
        if place < 0:
            return False
        del self._buffer[: len(self._limit)]
        self._end_part()
        self._state = "boundary"
        return True

    def _read_boundary(self) -> bool:
        """Read what follows a boundary: two hyphens after the last one, else the end of the line."""
        if len(self._buffer) < 2:
            return False
        mark = bytes(self._buffer[:2])
        if mark not in (b"--", b"\r\n"):
            raise _malformed("a boundary is followed by something else than a line")
        self._state = "end" if mark == b"--" else "headers"
        # The line's end stays: it may be that of empty headers.
        if mark == b"--":
            del self._buffer[:2]
        return True

    def _read_headers(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > LONGEST_HEADER:
                raise _malformed(f"the headers of a part have more than {LONGEST_HEADER} bytes")
            return False
        self._num_parts += 1
        if self._num_parts > MOST_PARTS or end > LONGEST_HEADER:
            raise _malformed(f"it has more than {MOST_PARTS} parts, or long headers")
        disposition = Message()
        for line in bytes(self._buffer[2:end]).split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name.strip().lower() == b"content-disposition":
                disposition["content-disposition"] = value.strip().decode("utf-8", "replace")
        del self._buffer[: end + 4]
        self._begin_part(disposition)
        self._state = "body"
        return True

    def _begin_part(self, disposition: Message) -> None:
        name = disposition.get_param("name", header="content-disposition")
        filename = disposition.get_filename()
        if not isinstance(name, str):
            raise _malformed("a part has no name")
        self._name = name
        self._is_file = filename is not None
        if filename is not None and (name != "file" or self.upload.filename is not None):
            raise RequestError("A file is expected once, in the part 'file'.", param=name)
        if filename is not None:
            self.upload.filename = filename

    async def _take(self, data: bytes) -> None:
        if self._name is None or not data:
            return
        if self._is_file:
            await self._sink(data)
            return
        self._text += data
        if len(self._text) > LONGEST_FIELD:
            raise RequestError(f"The part '{self._name[:64]}' has more than {LONGEST_FIELD} bytes.", param=self._name)

    def _end_part(self) -> None:
        if self._name is not None and not self._is_file:
            self.upload.fields[self._name] = self._text.decode("utf-8", "replace")
        self._text.clear()
        self._name = None


def _malformed(why: str) -> RequestError:
    return RequestError(f"The body is no multipart/form-data: {why}.", code="invalid_multipart")
