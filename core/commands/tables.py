"""Printing of tables and JSON to standard output.

Owns: widths and colours. Never does: choose the content. Called by: the commands.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import msgspec

NARROWEST = 6
"""Minimum width of a text column, however long the names before it are."""

COLOURS = {"available": "green", "unavailable": "yellow", "broken": "red", "blocked": "magenta", "chosen": "green"}


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, colour: str = "", num_names: int = 1) -> None:
    """Print aligned columns; in a terminal with rich, which wraps texts.

    colour: head of the column that is coloured by its words.
    num_names: number of leading columns with names, which are neither wrapped nor truncated.
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
    """Return the width of the longest cell in a column."""
    return max((len(row[index]) for row in rows), default=0)


def print_json(value: Any) -> None:
    """Print indented JSON; values without a JSON form are written as text."""
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
