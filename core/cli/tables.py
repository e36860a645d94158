"""Tables on the terminal.

Owns: widths and colours. Never does: decide what is shown. Called by: the commands.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

COLOURS = {"available": "green", "unavailable": "yellow", "broken": "red", "blocked": "magenta", "chosen": "green"}


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, colour: str = "") -> None:
    """Aligned columns; in a terminal with rich, the column `colour` coloured by its words."""
    if sys.stdout.isatty():
        _print_rich(heads, rows, colour)
        return
    widths = [max(len(line[i]) for line in [heads, *rows]) for i in range(len(heads))]
    for line in [heads, *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _print_rich(heads: Sequence[str], rows: Sequence[Sequence[str]], colour: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for head in heads:
        table.add_column(head)
    for row in rows:
        cells = zip(heads, row, strict=True)
        table.add_row(*(Text(cell, style=COLOURS.get(cell, "") if head == colour else "") for head, cell in cells))
    Console().print(table)
