"""Bodies of multipart/form-data (RFC 7578): fields, and one file in the part `file`.

Owns: their limits, and the errors of a malformed one; python-multipart parses them. Never does: know a field, or keep
the bytes of a file. Called by: the routes of uploads and of sounds.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote_to_bytes

from python_multipart import MultipartParser
from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import parse_options_header

from core.api.errors import RequestError

TYPE: Final = "multipart/form-data"
MOST_PARTS: Final = 32
MOST_HEADERS: Final = 8
LONGEST_HEADER: Final = 4 * 1024
LONGEST_FIELD: Final = 64 * 1024
MOST_SEMICOLONS: Final = 64
"""Limits of a form: parts, header lines of a part, bytes of such a line and of a part that is no file.

A line of 4,096 semicolons takes 2 ms to parse, hence their limit.
"""
BOUNDARY: Final = re.compile(rb"[0-9A-Za-z'()+_,./:=? -]{1,70}")
# RFC 7578 forbids this spelling of a file's name, so python-multipart passes over it; older clients still send it.
EXTENDED_NAME: Final = re.compile(rb";\s*filename\*\s*=[^';]*'[^';]*'([^;\s]*)", re.IGNORECASE)


@dataclass(slots=True)
class Form:
    """The parts of a body. fields: the values of each field, in order. filename: None without a file."""

    fields: dict[str, list[str]] = field(default_factory=dict)
    filename: str | None = None

    def one(self, name: str, default: str = "") -> str:
        """Return a field's value. Raises RequestError if it has several."""
        values = self.fields.get(name, [default])
        if len(values) > 1:
            raise RequestError(f"The form has {name} {len(values)} times; expected one.", param=name)
        return values[0]


class FormReader:
    """Reader of one body, piece by piece. Its methods raise RequestError, with status 415 for another content type."""

    def __init__(self, content_type: str) -> None:
        kind, options = _parsed(content_type.encode("latin-1", "replace"))
        boundary = options.get(b"boundary", b"")
        if kind != TYPE.encode() or BOUNDARY.fullmatch(boundary) is None:
            raise RequestError(
                f"The content type is not '{TYPE}' with a boundary; send the file as a form does.",
                status=415,
                code="unsupported_media_type",
            )
        self._delimiter = b"\r\n--" + boundary
        self._last_or_stray = re.compile(re.escape(self._delimiter) + rb"(?:(--)|(?!\r\n|[-\r]?\Z))")
        self._end = b"\r\n"  # the first boundary has no line before it
        logger = logging.getLogger("python_multipart")
        if logger.level == logging.NOTSET:  # unless the user's log configuration has set a level
            logger.setLevel(logging.ERROR)  # each malformed body logs a warning; the answer to the client says as much
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._on_part_begin,
                "on_header_field": self._on_header_name,
                "on_header_value": self._on_header_value,
                "on_header_end": self._on_header_end,
                "on_headers_finished": self._on_headers_finished,
                "on_part_data": self._on_data,
                "on_part_end": self._on_part_end,
                "on_end": self._on_end,
            },
            max_header_count=MOST_HEADERS,
            max_header_size=LONGEST_HEADER,
        )
        self._form = Form()
        self._num_parts = 0
        self._header_name = b""
        self._header_value = b""
        self._disposition = b""
        self._name = ""
        self._is_file = False
        self._text = bytearray()
        self._of_file: list[bytes] = []
        self._is_begun = self._is_whole = False

    def write(self, piece: bytes | bytearray) -> bytes:
        """Parse the next piece of the body, and return the bytes of the file in it."""
        window = self._end + piece
        # The parser takes a boundary within a line for data, byte by byte: 10 ms for a piece of 64 KiB full of them.
        mark = None if self._is_whole else self._last_or_stray.search(window)
        if mark is not None and mark[1] is None:
            raise _malformed("a boundary is followed by something else than a line")
        self._end = window[-len(self._delimiter) - 1 :]
        if not self._is_begun:
            begin = window.find(self._delimiter)
            if begin < 0:
                return b""
            # The parser refuses text before the first boundary, which RFC 2046 allows.
            piece = window[begin + 2 :]
            self._is_begun = True
        try:
            self._parser.write(piece)  # type: ignore[arg-type]
        except MultipartParseError as error:
            raise _malformed(str(error)) from None
        of_file, self._of_file = self._of_file, []
        return b"".join(of_file)

    def end(self) -> Form:
        """Return the form, after the last piece."""
        if not self._is_whole:
            raise _malformed("it ends before its last boundary")
        return self._form

    def _on_part_begin(self) -> None:
        self._num_parts += 1
        if self._num_parts > MOST_PARTS:
            raise _malformed(f"it has more than {MOST_PARTS} parts")
        self._disposition = b""

    def _on_header_name(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _on_header_end(self) -> None:
        if self._header_name.lower() == b"content-disposition":
            self._disposition = self._header_value
        self._header_name = self._header_value = b""

    def _on_headers_finished(self) -> None:
        _, options = _parsed(self._disposition)
        if b"name" not in options:
            raise _malformed("a part has no name")
        self._name = options[b"name"].decode(errors="replace")
        extended = EXTENDED_NAME.search(self._disposition)
        filename = options.get(b"filename", unquote_to_bytes(extended[1]) if extended else None)
        self._is_file = filename is not None
        if filename is None:
            return
        if self._name != "file" or self._form.filename is not None:
            raise RequestError("A file is expected once, in the part 'file'.", param=self._name[:64])
        self._form.filename = filename.decode(errors="replace")

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self._of_file.append(data[start:end])
            return
        if len(self._text) + end - start > LONGEST_FIELD:
            name = self._name[:64]
            raise RequestError(f"The part {name!r} has more than {LONGEST_FIELD} bytes.", param=name)
        self._text += data[start:end]

    def _on_part_end(self) -> None:
        if self._is_file:
            return
        name = self._name[:64]
        try:
            self._form.fields.setdefault(self._name, []).append(self._text.decode())
        except UnicodeDecodeError:
            raise RequestError(f"The part {name!r} is not UTF-8; expected text.", param=name) from None
        self._text.clear()

    def _on_end(self) -> None:
        self._is_whole = True


def read_form(pieces: Iterable[bytes | bytearray], content_type: str) -> tuple[Form, bytes]:
    """Return the form of a whole body, and the bytes of its file. Raises RequestError."""
    reader = FormReader(content_type)
    file = b"".join([reader.write(piece) for piece in pieces])
    return reader.end(), file


def _parsed(header: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    """Return a header's value and its parameters. Raises RequestError."""
    if header.count(b";") > MOST_SEMICOLONS:
        raise _malformed(f"a header has more than {MOST_SEMICOLONS} semicolons")
    return parse_options_header(header)


def _malformed(why: str) -> RequestError:
    return RequestError(f"The body is no {TYPE}: {why}.", code="invalid_multipart")
