"""The records of the journal, and their binary form.

Owns: the frame around each record, and reading frames back out of bytes that may be damaged. Never does: touch files,
or know what the bodies of requests mean. Called by: the journal's other parts.

A frame is a mark, the payload's length, a checksum, the number of the entry, the number of the record within the entry,
its kind, and the payload (msgpack). After an invalid frame, reading continues at the next mark: damage costs only the
records that it hits.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import msgspec

from core.api.messages import EngineOutput

MARK = b"\xc1jr1"
"""The start of a frame. Its first byte never occurs in msgpack."""

_HEAD = struct.Struct("<4sII")
_NAME = struct.Struct("<QIB")
HEAD_BYTES = _HEAD.size + _NAME.size

LONGEST = 1 << 30
"""Maximum size of a payload in bytes; a longer one is damage."""


class Kind(IntEnum):
    """The kinds of records.

    FILE:     the first record of a file; of entry 0.
    ACCEPTED: a request was accepted: the first record of its entry, number 0.
    BEGUN:    a prompt of it is about to enter the engine.
    GIVEN:    tokens of a prompt.
    ENDED:    the stored form of an entry that has ended. It replaces all earlier records of the entry.
    DROPPED:  the entry is no longer needed.
    SHOWN:    an output of a prompt is about to be shown, if there are several prompts.
    TRAFFIC:  a whole request of recorded traffic (`core_apis.traffic`), in a directory of its own.
    """

    FILE = 0
    ACCEPTED = 1
    BEGUN = 2
    GIVEN = 3
    ENDED = 4
    DROPPED = 5
    SHOWN = 6
    TRAFFIC = 7


class FileHead(msgspec.Struct, array_like=True):
    """The head of a file.

    salt: keys the digests of tenants; the same in all files of a directory. epoch: how often the journal was opened.
    """

    salt: bytes
    epoch: int


class Accepted(msgspec.Struct, array_like=True):
    """A request as it was accepted.

    kind:     the kind of its answer.
    id:       of the answer, as clients know it.
    tenant:   digest of the API key; empty if there are no keys.
    created:  seconds since the epoch, as reported in the answer.
    arrived:  seconds since the epoch from which its time limit counts.
    user:     the user of the request, for the fair policy.
    origin:   digest of everything besides the request that its tokens depend on.
    body:     the prepared request, msgpack.
    adapter:  digest of its adapter; empty: it has none.
    """

    kind: str
    id: str
    tenant: bytes
    created: int
    arrived: float
    user: str
    origin: str
    body: bytes
    adapter: str = ""


class Begun(msgspec.Struct, array_like=True):
    """The start of a prompt.

    prompt: its place in the request. seed: of its noise, whether the client or the server chose it.
    """

    prompt: int
    seed: int


class Given(msgspec.Struct, array_like=True):
    """The outputs of one step of the engine for the prompt number `prompt`, without ids and handles."""

    prompt: int
    outputs: list[EngineOutput]


class Shown(msgspec.Struct, array_like=True):
    """The prompt whose output was shown next. The order among several prompts does not follow from their outputs."""

    prompt: int


class Ended(msgspec.Struct, array_like=True):
    """The end of a request.

    kind, id, tenant: as accepted. at: seconds since the epoch. kept: the content to show from now on.
    """

    kind: str
    id: str
    tenant: bytes
    at: float
    kept: bytes


@dataclass(frozen=True, slots=True)
class Frame:
    """One record of the journal.

    entry, number, kind: see above. data: the whole frame; start: its offset in the bytes that were read.
    """

    entry: int
    number: int
    kind: Kind
    data: bytes
    start: int = 0

    @property
    def payload(self) -> memoryview:
        """Return the payload, without the frame."""
        return memoryview(self.data)[HEAD_BYTES:]


def framed(entry: int, number: int, kind: Kind, payload: bytes) -> Frame:
    """Return a record in its frame."""
    name = _NAME.pack(entry, number, kind)
    checksum = zlib.crc32(payload, zlib.crc32(name))
    head = _HEAD.pack(MARK, len(payload), checksum)
    return Frame(entry, number, kind, b"".join((head, name, payload)))


def accepted_frame(number: int, accepted: Accepted) -> Frame:
    """Return the first record of an entry. It is as large as the request, so large ones are made in a thread."""
    return framed(number, 0, Kind.ACCEPTED, msgspec.msgpack.encode(accepted))


def frames(data: bytes) -> Iterator[Frame]:
    """Yield all records in the contents of a file, skipping everything else."""
    position = data.find(MARK)
    while position >= 0:
        frame = frame_at(data, position)
        after = position + 1
        if frame is not None:
            yield frame
            after = position + len(frame.data)
        position = data.find(MARK, after)


def length_at(data: bytes, start: int) -> int | None:
    """Return the length of the payload that a frame at `start` claims; None if its head is truncated or damaged."""
    if start + HEAD_BYTES > len(data):
        return None
    _, length, _ = _HEAD.unpack_from(data, start)
    return length if length <= LONGEST else None


def frame_at(data: bytes, start: int) -> Frame | None:
    """Return the record that begins at `start`; None if it is truncated or damaged."""
    length = length_at(data, start)
    end = 0 if length is None else start + HEAD_BYTES + length
    if length is None or end > len(data):
        return None
    _, _, checksum = _HEAD.unpack_from(data, start)
    view = memoryview(data)[start + _HEAD.size : end]
    if zlib.crc32(view) != checksum:
        return None
    entry, number, kind = _NAME.unpack_from(data, start + _HEAD.size)
    if kind not in Kind.__members__.values():
        return None
    return Frame(entry, number, Kind(kind), data[start:end], start)
