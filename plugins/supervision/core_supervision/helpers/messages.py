"""The messages between a helper process and its parent.

Owns: their framing, and a refusal as a message. Never does: know a helper's task, or wait for long. Called by: both ends.

Each message consists of its length (uint32, little-endian) and its content. The parent's first message sets the helper
up; each further one is a job. The content of a helper's message begins with its `Mark`.
"""

from __future__ import annotations

from enum import IntEnum
from io import BufferedRWPair
from typing import Self

import msgspec

from core.api.errors import RequestError

HEADER_BYTES = 4


class Mark(IntEnum):
    """The meaning of a helper's message.

    ANSWER: to a job. LAST: an answer after which the process wants to be replaced.
    LOADING: the job waits for something that other jobs need too. WORKING: from now on its own time counts.
    """

    ANSWER = 0
    LAST = 1
    LOADING = 2
    WORKING = 3


class Refusal(msgspec.Struct, array_like=True):
    """A RequestError as a message. details: text for the log, when the fault is ours; empty otherwise."""

    message: str
    param: str | None
    status: int
    code: str | None
    details: str = ""

    @classmethod
    def of(cls, error: RequestError) -> Self:
        """Make the message for an error."""
        return cls(str(error), error.param, error.status, error.code)

    def as_error(self) -> RequestError:
        """Return the error that the message carries, without `details`."""
        return RequestError(self.message, param=self.param, status=self.status, code=self.code)


def header(num_bytes: int) -> bytes:
    """Return the header of a message of `num_bytes`."""
    return num_bytes.to_bytes(HEADER_BYTES, "little")


def read_message(stream: BufferedRWPair) -> bytes:
    """Read the next message; blocks until it is complete, and returns an empty one at the end of the stream."""
    head = stream.read(HEADER_BYTES)
    if len(head) < HEADER_BYTES:
        return b""
    return stream.read(int.from_bytes(head, "little"))
