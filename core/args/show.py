"""Output of help: headings with two columns.

Owns: `Section`, and its layout with and without colours. Never does: know an argument, or import rich without a terminal.
Called by: the command line.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

INDENT = 30
"""Column in which texts begin, in plain help."""
WIDEST = 110
NARROWEST_TEXT = 30
NAMES = 34
"""Width of the names' column in a terminal, unless a single name is longer."""


@dataclass(frozen=True, slots=True)
class Section:
    """One section of help: a heading, and rows of (left column, right column)."""

    title: str
    rows: tuple[tuple[str, str], ...]


def show(usage: str, intro: str, sections: list[Section], *, page: bool = False) -> None:
    """Print help: with colours in a terminal, as plain text elsewhere. page: whether to use a pager in a terminal."""
    if sys.stdout.isatty():
        _show_rich(usage, intro, sections, page)
    else:
        columns = shutil.get_terminal_size().columns
        print(render(usage, intro, sections, min(columns, WIDEST)))


def render(usage: str, intro: str, sections: list[Section], width: int) -> str:
    """Return help as plain text of at most `width` columns, as far as the names are not longer."""
    lines = [f"Usage: {usage}", "", *textwrap.wrap(intro, width)]
    for section in sections:
        lines += ["", f"{section.title}:"]
        for head, text in section.rows:
            lines += _row(head, text, width)
    return "\n".join(lines)


def _row(head: str, text: str, width: int) -> list[str]:
    """Return the lines of one row; a long left part has a line of its own."""
    text_width = max(width - INDENT - 2, NARROWEST_TEXT)
    wrapped = textwrap.wrap(text, text_width, break_on_hyphens=False) or [""]
    first = f"  {head}"
    if len(first) <= INDENT - 2:
        first = first.ljust(INDENT) + wrapped.pop(0)
    lines = [first]
    for line in wrapped:
        lines.append(" " * INDENT + line)
    return lines


def _show_rich(usage: str, intro: str, sections: list[Section], page: bool) -> None:
    from rich.console import Console

    console = Console()
    if console.width < _names_width(sections) + NARROWEST_TEXT:
        print(render(usage, intro, sections, console.width))
        return
    if not page:
        _write(console, usage, intro, sections)
        return
    with console.pager(styles=True):
        _write(console, usage, intro, sections)


def _names_width(sections: list[Section]) -> int:
    """Return the width at which no name has to be wrapped."""
    words: list[str] = []
    for section in sections:
        for head, _ in section.rows:
            words += head.replace(",", " ").split()
    flags = [len(word) + 1 for word in words if word.startswith("-")]  # One column more for the comma.
    return max([NAMES, *flags])


def _write(console: Console, usage: str, intro: str, sections: list[Section]) -> None:
    from rich.table import Table
    from rich.text import Text

    label = Text("Usage: ", style="bold yellow")
    width = _names_width(sections)
    console.print(label + Text(usage, style="bold"))
    console.print()
    console.print(Text(intro))
    for section in sections:
        console.print()
        title = Text(section.title + ":", style="bold yellow")
        console.print(title)
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
        table.add_column(no_wrap=True, min_width=22)
        table.add_column()
        for head, text in section.rows:
            lines = textwrap.wrap(head, width, break_on_hyphens=False)  # Only lists of choices can be longer.
            names = Text("\n".join(lines), style="cyan")
            table.add_row(names, Text(text))
        console.print(table)
