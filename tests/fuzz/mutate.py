"""Damaged copies of good files.

Owns: the kinds of damage. Never does: know a format. Called by: the workers.
"""

import random
import struct
from collections.abc import Callable

EDGES = (
    0,
    1,
    7,
    8,
    127,
    128,
    255,
    256,
    1 << 15,
    1 << 16,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 40,
    (1 << 63) - 1,
)
"""Numbers at which counts and sizes go wrong."""
WORDS = (
    b"null", b"-1", b"1e999", b"NaN", b'""', b"[]", b"{}", b"[[[[", b'"\\ud800"', b"..", b"/etc/passwd", b"F8_E4M3",
)  # fmt: skip
"""Text at which JSON and names go wrong."""
NEAR_THE_START = 4096


def cut(data: bytes, dice: random.Random) -> bytes:
    """The end is missing."""
    return data[: dice.randrange(len(data) + 1)]


def flip(data: bytes, dice: random.Random) -> bytes:
    """Some bits are others, mostly in the header."""
    changed = bytearray(data)
    if not changed:
        return data
    for _ in range(dice.choice((1, 1, 2, 8))):
        place = _place(changed, dice)
        changed[place] ^= 1 << dice.randrange(8)
    return bytes(changed)


def number(data: bytes, dice: random.Random) -> bytes:
    """A number of 2, 4 or 8 bytes is another one."""
    form = dice.choice(("<H", "<I", "<Q"))
    size = struct.calcsize(form)
    if len(data) < size:
        return data
    place = min(_place(data, dice), len(data) - size)
    value = dice.choice(EDGES) + dice.randrange(-2, 3)
    written = struct.pack(form, value % (1 << 8 * size))
    return data[:place] + written + data[place + size :]


def insert(data: bytes, dice: random.Random) -> bytes:
    """Something stands in between."""
    place = _place(data, dice) if data else 0
    added = dice.choice((dice.randbytes(dice.randrange(1, 40)), dice.choice(WORDS), b"\0" * dice.randrange(1, 200)))
    return data[:place] + added + data[place:]


def remove(data: bytes, dice: random.Random) -> bytes:
    """Something is missing in between."""
    if not data:
        return data
    place = _place(data, dice)
    return data[:place] + data[place + dice.randrange(1, 64) :]


def repeat(data: bytes, dice: random.Random) -> bytes:
    """A part stands there twice."""
    if not data:
        return data
    place = _place(data, dice)
    part = data[place : place + dice.randrange(1, 300)]
    return data[:place] + part + data[place:]


def digits(data: bytes, dice: random.Random) -> bytes:
    """A number that is written as text is another one."""
    places = [index for index, byte in enumerate(data[:NEAR_THE_START]) if 48 <= byte < 58]
    if not places:
        return flip(data, dice)
    place = dice.choice(places)
    written = str(dice.choice(EDGES) * dice.choice((1, -1))).encode()
    return data[:place] + written + data[place + 1 :]


KINDS: tuple[Callable[[bytes, random.Random], bytes], ...] = (cut, flip, number, insert, remove, repeat, digits)


def damaged(data: bytes, dice: random.Random) -> bytes:
    """One to three kinds of damage."""
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        data = dice.choice(KINDS)(data, dice)
    return data


def _place(data: bytes | bytearray, dice: random.Random) -> int:
    """A place, mostly near the start, where headers are."""
    reach = min(len(data), dice.choice((64, 512, NEAR_THE_START, len(data))))
    return dice.randrange(max(reach, 1)) if data else 0
