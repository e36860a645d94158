"""Help, generated from the schema.

Owns: the text of `--help` and `--help=WORD`. Never does: import plugins or torch; rich is imported only for a terminal.
Called by: the command line.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from dataclasses import dataclass

from core.api.errors import UserError, nearest
from core.args.convert import describe
from core.args.schema import Field, Schema, schema


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and rows of (left, right)."""

    title: str
    rows: tuple[tuple[str, str], ...]


def argument_sections(word: str | None = None) -> list[Section]:
    """All groups; or those that `word` names: a group, an argument, or a word in the help. Raises UserError."""
    known = schema()
    chosen = _matching(known, word) if word else list(known.fields.values())
    return [
        Section(title, tuple((_left(f), _right(f)) for f in chosen if f.group == group))
        for group, title in known.titles.items()
        if any(f.group == group for f in chosen)
    ]


def show(usage: str, intro: str, sections: list[Section]) -> None:
    """Print help: with colours in a terminal, as plain text elsewhere."""
    if sys.stdout.isatty():
        _show_rich(usage, intro, sections)
    else:
        print(render(usage, intro, sections, min(shutil.get_terminal_size().columns, 110)))


def render(usage: str, intro: str, sections: list[Section], width: int) -> str:
    """Help as plain text of at most `width` columns."""
    lines = [f"Usage: {usage}", "", *textwrap.wrap(intro, width)]
    left = 30
    for section in sections:
        lines += ["", f"{section.title}:"]
        for head, text in section.rows:
            wrapped = textwrap.wrap(text, max(width - left - 2, 30)) or [""]
            if len(head) > left - 4:
                lines.append("  " + head)
            else:
                lines.append(f"  {head:<{left - 2}}{wrapped.pop(0)}")
            lines += [" " * left + line for line in wrapped]
    return "\n".join(lines)


def _show_rich(usage: str, intro: str, sections: list[Section]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    console.print(Text("Usage: ", style="bold yellow") + Text(usage, style="bold"))
    console.print()
    console.print(Text(intro))
    for section in sections:
        console.print()
        console.print(Text(section.title + ":", style="bold yellow"))
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
        table.add_column(no_wrap=False, max_width=34)
        table.add_column()
        for head, text in section.rows:
            table.add_row(Text(head, style="cyan"), Text(text))
        console.print(table)


def _left(field: Field) -> str:
    names = ", ".join(field.flags)
    if field.base is bool:
        return f"{names}, --no-{field.flag[2:]}"
    return f"{names} {field.arg.metavar or _metavar(field)}"


def _metavar(field: Field) -> str:
    if field.arg.choices:
        return "{" + ",".join(str(choice) for choice in field.arg.choices) + "}"
    if field.is_list:
        return "TEXT..."
    return "JSON" if field.is_mapping else {int: "N", float: "X"}.get(field.base, "TEXT")


def _right(field: Field) -> str:
    text = field.arg.help
    if (
        field.base in (int, float)
        and not field.arg.choices
        and (field.arg.ge or field.arg.le or field.arg.gt is not None)
    ):
        text += f" Expects {describe(field)}."
    if field.arg.plugin:
        text += f" Names: core plugins list --kind={field.arg.plugin}."
    default = field.default
    return text if default in (None, {}, [], False) else f"{text} Default: {default}."


def _matching(known: Schema, word: str) -> list[Field]:
    fields = list(known.fields.values())
    wanted = word.lower().lstrip("-").replace("-", "_")
    group = [f for f in fields if f.group == wanted]
    exact = known.named(wanted) or known.short(wanted)
    if group or exact:
        return group or [f for f in fields if f is exact]
    found = [f for f in fields if wanted in f.name or wanted.replace("_", " ") in f.arg.help.lower()]
    if not found:
        raise UserError(f"--help={word}: no such group or argument.{nearest(wanted, [*known.titles, *known.fields])}")
    return found
