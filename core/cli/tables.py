"""Tables and JSON on standard output.

Owns: widths and colours. Never does: decide what is shown. Called by: the commands.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import msgspec

COLOURS = {"available": "green", "unavailable": "yellow", "broken": "red", "blocked": "magenta", "chosen": "green"}


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, colour: str = "") -> None:
    """Aligned columns; in a terminal with rich, the column `colour` coloured by its words."""
    if sys.stdout.isatty():
        _print_rich(heads, rows, colour)
        return
    lines = [heads, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        print("  ".join(cells).rstrip())


def print_json(value: Any) -> None:
    """Indented JSON; what has no form in JSON is written as text."""
    text = msgspec.json.encode(value, enc_hook=str)
    print(msgspec.json.format(text, indent=2).decode())


def _print_rich(heads: Sequence[str], rows: Sequence[Sequence[str]], colour: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for head in heads:
        table.add_column(head)
    for row in rows:
        cells = []
        for head, cell in zip(heads, row, strict=True):
            style = COLOURS.get(cell, "") if head == colour else ""
            cells.append(Text(cell, style=style))
        table.add_row(*cells)
    Console().print(table)
