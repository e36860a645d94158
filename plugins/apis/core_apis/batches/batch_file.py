"""A batch file, validated before anything runs.

Owns: the locations of its lines, and the check for duplicate ids. Never does: run anything. Called by: the runs of
batches, `core run-batch`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import xxhash

from core.api.errors import ConfigError, UserError
from core_apis.batches.line import Line, LineError, parsed, shown

MOST_PROBLEMS = 10
"""Limit on the problems reported for a file; the others are only counted."""
AROUND_BODY = 64 * 1024
"""Allowance in bytes for the parts of a line other than its body."""
BOM = b"\xef\xbb\xbf"


@dataclass(slots=True)
class Place:
    """The location of one line in the file.

    number: counts from 1.
    offset, size: in bytes.
    digest: of the line and the model; equal lines have equal digests.
    error: why it cannot be run, or None.
    url: path of its request, if it can be run.
    """

    number: int
    offset: int
    size: int
    digest: bytes
    error: LineError | None = None
    url: str = ""


class BatchFile:
    """A validated batch file. places: of its requests, in order; a request that occurs twice is listed once.

    runnable: the places without an error.
    num_repeated: lines that repeat another one exactly.
    """

    def __init__(self, path: Path, places: list[Place], num_repeated: int) -> None:
        self.path = path
        self.places = places
        self.runnable = [place for place in places if place.error is None]
        self.num_repeated = num_repeated

    def read(self, file: BinaryIO, place: Place) -> Line:
        """Read the line at a place without an error. Raises UserError when the file has changed since validation."""
        file.seek(place.offset)
        try:
            return parsed(file.read(place.size), place.number)
        except LineError as error:
            raise UserError(f"{self.path} has changed while it is run: {error} Start again.") from None


def look_through(path: Path, model: str, max_body_size: int) -> BatchFile:
    """Read a whole file once, so that its problems are known before anything runs.

    model: part of every digest, because another model gives other results. Raises UserError for an unreadable or empty
    file, ConfigError for ids used by several requests.
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
                clashes.append(f"line {place.number}: the custom_id {shown(custom_id)} is that of line {first.number}")
    if clashes:
        raise ConfigError(_clash_problems(path, clashes))
    if not places:
        raise UserError(f"{path}: no request in it; expected a JSON object a line.")
    return BatchFile(path, places, num_repeated)


def _id_of(place: Place, text: bytes) -> str | None:
    """Return the custom id of a line, if it is readable; problems of the line are recorded in `place`."""
    if place.error is not None:
        return None
    try:
        line = parsed(text, place.number)
        place.url = line.url
        return line.custom_id
    except LineError as error:
        place.error = error
        return error.custom_id


def open_input(path: Path) -> BinaryIO:
    """Open the input file. Raises UserError, also for a pipe, because the file is read twice."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}.") from None
    if not file.seekable():
        file.close()
        raise UserError(f"{path}: is a pipe or a terminal, but a batch is read twice; write the requests to a file.")
    return file


def _raw_lines(file: BinaryIO, model: str, longest: int) -> Iterator[tuple[Place, bytes]]:
    """Yield the non-empty lines. A line that is too long is skipped, with an error."""
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
    """Skip to the end of a line; returns the number of bytes skipped."""
    size = 0
    while True:
        part = file.readline(1 << 20)
        size += len(part)
        if not part or part.endswith(b"\n"):
            return size


def _clash_problems(path: Path, clashes: list[str]) -> list[str]:
    """Return an error for each id used by several requests."""
    problems = [
        f"{path}: {clash}, with another request; give each an id of its own." for clash in clashes[:MOST_PROBLEMS]
    ]
    if len(clashes) > MOST_PROBLEMS:
        problems.append(f"{path}: {len(clashes) - MOST_PROBLEMS} more lines like these.")
    return problems
