"""Tables of tiles: text lines that users can read and extend.

Owns: the format of a line, and its error messages. Never does: choose a tile. Called by: `product_tiles.py`, tuning.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from core.api.errors import UserError

ANY: Final = "-"
COLUMNS: Final = ("chip", "weight", "outputs", "inputs", "rows", "bn", "bt", "warps", "stages")
WIDTHS: Final = (11, 15, 8, 7, 5, 4, 4, 6, 0)
"""Column widths, for readability; columns are separated by a space."""
LIMITS: Final = {"bn": (16, 512), "bt": (16, 512), "warps": (1, 32), "stages": (1, 8)}
SMALLEST: Final = 16
"""Row count that the first tile of every group must serve: blocks of experts' rows can be this small."""
MOST_BYTES: Final = 1 << 20
"""Maximum file size in bytes."""


class Tile(NamedTuple):
    """A configuration of the product kernel.

    rows: maximum row count for which it is chosen; 0: any. bn, bt: outputs and rows per program. warps, stages: of a
    program.
    """

    rows: int
    bn: int
    bt: int
    warps: int
    stages: int


class Key(NamedTuple):
    """The product that a group of lines applies to. outputs, inputs: 0 for any."""

    chip: str
    weight: str
    outputs: int = 0
    inputs: int = 0


Groups = dict[Key, tuple[Tile, ...]]


def read_tiles(text: str, source: str) -> Groups:
    """Parse a table into groups. source: its name in messages. Raises UserError with the line."""
    found: dict[Key, list[Tile]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if words:
            key, tile = _read_line(words, f"{source}, line {number}")
            found.setdefault(key, []).append(tile)
    groups = {key: tuple(tiles) for key, tiles in found.items()}
    for key, tiles in groups.items():
        _check_group(key, tiles, source)
    return groups


def line_of(key: Key, tile: Tile) -> str:
    """Format one line of a table."""
    numbers = [str(number) if number else ANY for number in (key.outputs, key.inputs, tile.rows)]
    words = [key.chip, key.weight, *numbers, *map(str, tile[1:])]
    padded = [word.ljust(width) for word, width in zip(words, WIDTHS, strict=True)]
    return " ".join(padded).rstrip()


def _read_line(words: list[str], place: str) -> tuple[Key, Tile]:
    if len(words) != len(COLUMNS):
        raise UserError(f"{place}: {len(words)} words, expected {len(COLUMNS)}: {' '.join(COLUMNS)}.")
    named = dict(zip(COLUMNS, words, strict=True))
    numbers = {name: _number(named[name], f"{place}: {name}") for name in COLUMNS[2:]}
    for name, (least, most) in LIMITS.items():
        size = numbers[name]
        is_power = size & (size - 1) == 0
        if not least <= size <= most or (name != "stages" and not is_power):
            kind = "a number" if name == "stages" else "a power of 2"
            raise UserError(f"{place}: {name} is {named[name]}, expected {kind} from {least} to {most}.")
    key = Key(named["chip"], named["weight"], numbers["outputs"], numbers["inputs"])
    sizes = [numbers[name] for name in COLUMNS[4:]]
    return key, Tile(*sizes)


def _number(word: str, subject: str) -> int:
    if word == ANY:
        return 0
    if not word.isdecimal() or not 0 < int(word) < 1 << 31:
        raise UserError(f"{subject} is '{word}', expected a positive number, or {ANY} for any.")
    return int(word)


def _check_group(key: Key, tiles: Iterable[Tile], source: str) -> None:
    """Check that row counts increase, that the last line accepts any, and that the first serves the smallest blocks."""
    rows = [tile.rows for tile in tiles]
    name = " ".join(str(word or ANY) for word in key)
    if rows[-1] or not all(rows[:-1]) or sorted(rows[:-1]) != rows[:-1]:
        raise UserError(
            f"{source}: the rows of '{name}' are {', '.join(str(row or ANY) for row in rows)}; "
            f"expected rising numbers and {ANY} in the last line."
        )
    first = next(iter(tiles))
    if first.bt != SMALLEST:
        raise UserError(f"{source}: the first line of '{name}' has bt {first.bt}, expected {SMALLEST}.")
