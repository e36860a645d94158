"""The lines of a batch file: what each asks for, and what is wrong with it.

Owns: the form of a line, the paths that a batch may ask for, the look at a whole file before anything runs. Never does: check
bodies (the server does). Called by: the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import msgspec
import xxhash

from core.api.errors import ConfigError, UserError, nearest

SERVED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "/v1/chat/completions": ("stream",),
        "/v1/completions": ("stream",),
        "/v1/responses": ("stream", "background"),
    }
)
"""The paths of requests, each with the fields of its body that may not be true: a batch has one whole answer a line."""

LATER = (
    "/v1/embeddings",
    "/v1/score",
    "/v1/rerank",
    "/v1/pooling",
    "/v1/classify",
    "/v1/moderations",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/images/generations",
)
"""Paths of other batch files, which are refused by name."""

LONGEST_ID = 1024
MOST_PROBLEMS = 10
"""Problems of a file that are told; the others are counted."""
AROUND_BODY = 64 * 1024
"""Bytes of a line beside its body."""
BOM = b"\xef\xbb\xbf"


class Line(msgspec.Struct):
    """One request, as it is written in the file."""

    custom_id: str
    url: str
    body: msgspec.Raw
    method: str = "POST"


class LineError(UserError):
    """A line that cannot be run. code: a short word. custom_id: where it could be read."""

    def __init__(self, message: str, code: str = "invalid_line", custom_id: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.custom_id = custom_id


@dataclass(slots=True)
class Place:
    """One line of the file.

    number: counts from 1.
    offset, size: in bytes.
    digest: of the line and the model; equal lines have equal ones.
    error: why it cannot be run; None: it can.
    """

    number: int
    offset: int
    size: int
    digest: bytes
    error: LineError | None = None


class BatchFile:
    """A batch file that was looked through. places: of its requests, in order; a request that comes twice is there once.

    num_repeated: lines that repeat another one exactly.
    """

    def __init__(self, path: Path, places: list[Place], num_repeated: int) -> None:
        self.path = path
        self.places = places
        self.num_repeated = num_repeated

    def read(self, file: BinaryIO, place: Place) -> Line:
        """The line at a place without an error. Raises UserError when the file has changed since it was looked through."""
        file.seek(place.offset)
        try:
            return parsed(file.read(place.size), place.number)
        except LineError as error:
            raise UserError(f"{self.path} has changed while it is run: {error} Start again.") from None


def look_through(path: Path, model: str, max_body_size: int) -> BatchFile:
    """Read a whole file once, so that what is wrong with it is known before anything runs.

    model: part of every digest: results of another model are other results.
    Raises UserError for a file that cannot be read or has no line, ConfigError for ids that stand for several requests.
    """
    places: list[Place] = []
    lines_of: dict[str, Place] = {}
    clashes: list[str] = []
    num_repeated = 0
    with open_input(path) as file:
        for place, text in _raw_lines(file, model, max_body_size + AROUND_BODY):
            places.append(place)
            custom_id = _id_of(place, text)
            if custom_id is None:
                continue
            first = lines_of.setdefault(custom_id, place)
            if first is place:
                continue
            if first.digest == place.digest:
                places.pop()
                num_repeated += 1
            else:
                clashes.append(f"line {place.number}: the custom_id {_shown(custom_id)} is that of line {first.number}")
    if clashes:
        raise ConfigError(_clash_problems(path, clashes))
    if not places:
        raise UserError(f"{path}: no request in it; expected a JSON object a line.")
    return BatchFile(path, places, num_repeated)


def _id_of(place: Place, text: bytes) -> str | None:
    """The custom id of a line, as far as it can be read; what is wrong with the line is noted in `place`."""
    if place.error is not None:
        return None
    try:
        return parsed(text, place.number).custom_id
    except LineError as error:
        place.error = error
        return error.custom_id


def open_input(path: Path) -> BinaryIO:
    """The file to read. Raises UserError."""
    try:
        return path.open("rb")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}.") from None


def parsed(text: bytes, number: int) -> Line:
    """One line. Raises LineError."""
    try:
        values = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LineError(f"Line {number} is no JSON: {error}.", "invalid_json") from None
    if not isinstance(values, dict):
        raise LineError(f"Line {number} is no JSON object; expected custom_id, method, url and body.", "invalid_json")
    custom_id = values.get("custom_id")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= LONGEST_ID:
        raise LineError(
            f"Line {number}: custom_id is {_shown(custom_id)}; expected a text of 1 to {LONGEST_ID} characters.",
            "invalid_custom_id",
        )
    try:
        _check(values)
    except LineError as error:
        raise LineError(f"Line {number}: {error}", error.code, custom_id) from None
    return msgspec.json.decode(text, type=Line)


def _check(values: dict[str, Any]) -> None:
    """Raises LineError for anything but the id that is wrong."""
    unknown = set(values) - set(Line.__struct_fields__)
    if unknown:
        name = min(unknown)
        raise LineError(f"{_shown(name)} is unknown here.{nearest(name, Line.__struct_fields__)} Leave it out.")
    method = values.get("method", "POST")
    if method != "POST":
        raise LineError(f"method is {_shown(method)}; expected 'POST'.", "invalid_method")
    url = values.get("url")
    if not isinstance(url, str) or url not in SERVED:
        raise LineError(_wrong_url(url), "invalid_url")
    body = values.get("body")
    if not isinstance(body, dict):
        raise LineError(f"body is {_shown(body)}; expected the JSON object of a request.", "invalid_body")
    for name in SERVED[url]:
        if body.get(name):
            raise LineError(f"{name} is true, but a batch has one whole answer a line; leave it out.", "invalid_body")


def _wrong_url(url: object) -> str:
    served = ", ".join(SERVED)
    if url in LATER:
        return f"url is '{url}', which batches do not serve; served are {served}."
    return f"url is {_shown(url)}; expected one of {served}.{nearest(str(url), SERVED)}"


def _raw_lines(file: BinaryIO, model: str, longest: int) -> Iterator[tuple[Place, bytes]]:
    """The lines that are not empty. One that is too long is skipped, with an error."""
    seed = model.encode("utf-8", "surrogateescape") + b"\0"
    offset = number = 0
    while True:
        text = file.readline(longest)
        if not text:
            return
        number += 1
        start = offset
        offset += len(text)
        if len(text) == longest and not text.endswith(b"\n"):
            offset += _skip_line(file)
            error = LineError(f"Line {number} is longer than {longest} bytes (--max-body-size).", "line_too_long")
            yield Place(number, start, 0, b"", error), b""
            continue
        if number == 1 and text.startswith(BOM):
            start += len(BOM)
            text = text.removeprefix(BOM)
        text = text.strip(b" \t\r\n")
        if text:
            yield Place(number, start, offset - start, xxhash.xxh3_128_digest(seed + text)), text


def _skip_line(file: BinaryIO) -> int:
    """Read on to the end of a line; returns how many bytes that were."""
    size = 0
    while True:
        part = file.readline(1 << 20)
        size += len(part)
        if not part or part.endswith(b"\n"):
            return size


def _clash_problems(path: Path, clashes: list[str]) -> list[str]:
    """Ids that stand for several requests."""
    problems = [
        f"{path}: {clash}, with another request; give each an id of its own." for clash in clashes[:MOST_PROBLEMS]
    ]
    if len(clashes) > MOST_PROBLEMS:
        problems.append(f"{path}: {len(clashes) - MOST_PROBLEMS} more lines like these.")
    return problems


def _shown(value: object) -> str:
    """A value in a sentence, not longer than one line."""
    text = "missing" if value is None else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
