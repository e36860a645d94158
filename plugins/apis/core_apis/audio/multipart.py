"""Bodies of `multipart/form-data`: fields and one file (RFC 7578).

Owns: taking a body apart, within limits. Never does: know a field. Called by: the routes of sounds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from core.api.errors import RequestError

TYPE: Final = "multipart/form-data"
MOST_PARTS: Final = 64
MOST_HEADER_BYTES: Final = 4_096
MOST_FIELD_BYTES: Final = 64 << 10
LONGEST_BOUNDARY: Final = 70
_BOUNDARY: Final = re.compile(r'boundary=(?:"([^"]+)"|([^\s;]+))', re.IGNORECASE)
_NAME: Final = re.compile(rb'[;\s]name=(?:"([^"]*)"|([^\s;]+))', re.IGNORECASE)
_FILE: Final = re.compile(rb"[;\s]filename\*?=", re.IGNORECASE)


@dataclass(slots=True)
class Form:
    """A form. fields: the values of each, in order. file: the bytes of the file in `file`; None: there is none."""

    fields: dict[str, list[str]] = field(default_factory=dict)
    file: bytes | None = None


def read_form(data: bytes, content_type: str) -> Form:
    """Take a body apart. Raises RequestError."""
    found = _BOUNDARY.search(content_type)
    boundary = (found[1] or found[2]) if found else ""
    if not 0 < len(boundary) <= LONGEST_BOUNDARY:
        raise _broken("the content type names no boundary")
    mark = b"--" + boundary.encode()
    begin = 0 if data.startswith(mark) else data.find(b"\r\n" + mark) + 2
    if not data.startswith(mark, begin):
        raise _broken("its first boundary is missing")
    form = Form()
    begin += len(mark)
    for _ in range(MOST_PARTS):
        if data.startswith(b"--", begin):
            return form
        begin = data.find(b"\r\n", begin, begin + MOST_HEADER_BYTES) + 2
        stop = data.find(b"\r\n" + mark, begin - 2)
        head = data.find(b"\r\n\r\n", begin - 2, begin + MOST_HEADER_BYTES)
        if begin == 1 or stop < 0 or not 0 <= head < stop + 2:
            raise _broken("a part is cut")
        _add(form, data[begin : max(head, begin)], data[head + 4 : stop] if head + 4 <= stop else b"")
        begin = stop + 2 + len(mark)
    raise _broken(f"it has more than {MOST_PARTS} parts")


def _add(form: Form, head: bytes, content: bytes) -> None:
    """Add a part. head: its headers."""
    found = _NAME.search(head)
    if found is None:
        raise _broken("a part has no name")
    name = (found[1] or found[2] or b"").decode(errors="replace")
    if _FILE.search(head):
        if name != "file" or form.file is not None:
            raise RequestError(f"The form has a file in {name[:50]!r}; expected one file, in 'file'.", param=name[:50])
        form.file = content
        return
    if len(content) > MOST_FIELD_BYTES:
        raise RequestError(
            f"The field {name[:50]!r} has {len(content)} bytes; expected at most {MOST_FIELD_BYTES}.", param=name[:50]
        )
    try:
        form.fields.setdefault(name, []).append(content.decode())
    except UnicodeDecodeError:
        raise RequestError(f"The field {name[:50]!r} is not UTF-8; expected text.", param=name[:50]) from None


def _broken(why: str) -> RequestError:
    return RequestError(f"The body is no {TYPE}: {why}.")
