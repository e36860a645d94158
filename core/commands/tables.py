"""Tables and JSON on standard output.

Owns: widths and colours. Never does: decide what is shown. Called by: the commands.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import msgspec

NARROWEST = 6
"""Columns that texts have at least, however long the names before them are."""

COLOURS = {"available": "green", "unavailable": "yellow", "broken": "red", "blocked": "magenta", "chosen": "green"}


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, colour: str = "", num_names: int = 1) -> None:
    """Aligned columns; in a terminal with rich, which wraps texts, the column `colour` coloured by its words.

    num_names: columns at the left that hold names: they are neither wrapped nor cut.
    """
    if sys.stdout.isatty():
        _print_rich(heads, rows, colour, num_names)
        return
    lines = [heads, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        print("  ".join(cells).rstrip())


def _widest(rows: Sequence[Sequence[str]], index: int) -> int:
    """Columns of the longest cell of a column."""
    return max((len(row[index]) for row in rows), default=0)


def print_json(value: Any) -> None:
    """Indented JSON; what has no form in JSON is written as text."""
    text = msgspec.json.encode(value, enc_hook=str)
    print(msgspec.json.format(text, indent=2).decode())


def _print_rich(heads: Sequence[str], rows: Sequence[Sequence[str]], colour: str, num_names: int) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for index, head in enumerate(heads):
        is_name = index < num_names
        least = _widest(rows, index) if is_name else NARROWEST
        table.add_column(head, no_wrap=is_name, min_width=least, overflow="fold")
    for row in rows:
        cells = []
        for head, cell in zip(heads, row, strict=True):
            style = COLOURS.get(cell, "") if head == colour else ""
            cells.append(Text(cell, style=style))
        table.add_row(*cells)
    Console().print(table)
