"""The commands that rank 0 sends to the other ranks.

Owns: the form of a command in the stream. Never does: send (the group does), or give its payload a meaning.
Called by: the executor (writes), the other ranks (read).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Final, NamedTuple

HEADER: Final = struct.Struct("<IIQQ")
MAGIC: Final = 0x6B6E6172
LARGEST: Final = 1 << 31
"""Limit of a payload in bytes. No plan comes near; a damaged length would make a rank wait for ever."""


class Kind(IntEnum):
    """What a command asks for."""

    START = 1  # build a worker from a configuration
    STEP = 2  # compute a plan
    CALL = 3  # make a call besides steps, see `calls`
    END = 4  # end
    READ = 5  # begin to read an adapter, or drop one, without an answer; see `adapters`


class Command(NamedTuple):
    """One command. number: rises by one with each."""

    kind: Kind
    number: int
    payload: bytes


class CommandError(Exception):
    """The stream holds something else than the next command."""


def encode(command: Command) -> bytes:
    """Return a command as bytes of the stream."""
    return HEADER.pack(MAGIC, command.kind, command.number, len(command.payload)) + command.payload


def decode(read: Callable[[int], bytes], number: int) -> Command:
    """Read the command with a number. read: returns as many bytes of the stream. Raises CommandError."""
    magic, kind, found, length = HEADER.unpack(read(HEADER.size))
    if magic != MAGIC or kind not in tuple(Kind) or found != number or length > LARGEST:
        raise CommandError(
            f"Command {number} of rank 0 is damaged: mark {magic:#x}, kind {kind}, number {found}, {length} bytes."
        )
    return Command(Kind(kind), found, read(length) if length else b"")
