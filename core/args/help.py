"""Help, generated from the schema.

Owns: the text of `--help` and `--help=WORD`. Never does: import plugins or torch; rich is imported only for a terminal.
Called by: the command line.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from core.api.errors import UserError, nearest
from core.args.convert import describe
from core.args.retired import Retired
from core.args.schema import Field, Schema, group_key, schema

if TYPE_CHECKING:
    from rich.console import Console

NOT_YET = "Not served yet"
EMPTY: tuple[Any, ...] = (None, {}, [], False, "")
ONLY = "Only the default is served yet"
OLDER = "Older arguments"


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and rows of (left, right)."""

    title: str
    rows: tuple[tuple[str, str], ...]


def argument_sections(word: str | None = None) -> list[Section]:
    """All groups; or those that `word` names: a group, an argument, or a word in the help. Raises UserError."""
    known = schema()
    chosen, old = (list(known.fields.values()), []) if not word else _matching(known, word)
    if len(chosen) == 1 and word and not old:
        return _one(known, chosen[0])
    sections = [
        Section(title, tuple((left(f), right(f)) for f in chosen if f.group == group))
        for group, title in known.titles.items()
        if any(f.group == group for f in chosen)
    ]
    if old:
        sections.append(Section(OLDER, tuple((entry.flag, _gone(entry)) for entry in old)))
    return sections


def group_sections() -> list[Section]:
    """The groups, for `--help=listgroup`."""
    known = schema()
    counts = {key: [field for field in known.fields.values() if field.group == key] for key in known.titles}
    rows = tuple(
        (key, f"{title}: {len(counts[key])} arguments, {sum(f.is_served for f in counts[key])} of them served.")
        for key, title in known.titles.items()
    )
    return [Section("Groups, for --help=GROUP", rows)]


def show(usage: str, intro: str, sections: list[Section], *, page: bool = False) -> None:
    """Print help: with colours in a terminal, as plain text elsewhere. page: through a pager, in a terminal."""
    if sys.stdout.isatty():
        _show_rich(usage, intro, sections, page)
    else:
        print(render(usage, intro, sections, min(shutil.get_terminal_size().columns, 110)))


def render(usage: str, intro: str, sections: list[Section], width: int) -> str:
    """Help as plain text of at most `width` columns."""
    lines = [f"Usage: {usage}", "", *textwrap.wrap(intro, width)]
    indent = 30
    for section in sections:
        lines += ["", f"{section.title}:"]
        for head, text in section.rows:
            wrapped = textwrap.wrap(text, max(width - indent - 2, 30), break_on_hyphens=False) or [""]
            if len(head) > indent - 4:
                lines.append("  " + head)
            else:
                lines.append(f"  {head:<{indent - 2}}{wrapped.pop(0)}")
            lines += [" " * indent + line for line in wrapped]
    return "\n".join(lines)


def left(field: Field) -> str:
    """Every spelling of an argument, with its value."""
    names = ", ".join(field.flags) or f"{field.name} (Python only)"
    if field.base is bool:
        return f"{names}, --no-{field.flag[2:]}" if field.flags else names
    return f"{names} {field.arg.metavar or _metavar(field)}"


def right(field: Field) -> str:
    """Help, limits, where names come from, default, and whether it is served."""
    arg = field.arg
    text = arg.help
    if field.base in (int, float) and not arg.choices and (arg.ge or arg.le or arg.lt or arg.gt is not None):
        text += f" Expects {describe(field)}."
    if arg.plugin:
        text += f" Names: core plugins list --kind={arg.plugin}."
    if field.default not in EMPTY:
        text += f" Default: {shown_default(field)}."
    if arg.unserved and not field.is_served:
        text += f" {not_yet(field)}: {arg.unserved}."
    elif arg.unserved and arg.served is not None:
        text += (
            f" Served: {', '.join('unset' if value is None else str(value) for value in arg.served if value != '')}."
        )
    return text


def not_yet(field: Field) -> str:
    """The words before the reason why an argument is not served."""
    return NOT_YET if field.default in EMPTY else ONLY


def shown_default(field: Field) -> str:
    """The default as it is written: `on`, `auto`, `a, b`, `unset`."""
    value: Any = field.default
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "unset" if value is None or value == "" else "empty" if value == {} else str(value)


def _one(known: Schema, field: Field) -> list[Section]:
    """Everything about one argument, with the keys that it takes."""
    rows = [(left(field), right(field)), ("expects", f"{describe(field)}.")]
    rows.append(("since", f"{field.arg.since}; in the group {field.group}."))
    sections = [Section(known.titles[field.group], tuple(rows))]
    if field.keys:
        sections.append(Section("Keys", tuple(_key_rows(field.flag, field))))
    return sections


def _key_rows(prefix: str, field: Field) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for key in field.keys.values():
        value = "true|false" if key.base is bool else _metavar(key)
        rows.append((f"{prefix}.{key.name} {value}", right(key)))
        rows += _key_rows(f"{prefix}.{key.name}", key)
    return rows


def _gone(entry: Retired) -> str:
    text = entry.sentence("").removeprefix(": ")
    return text[0].upper() + text[1:]


def _metavar(field: Field) -> str:
    if field.arg.choices:
        return "{" + ",".join(str(choice) for choice in field.arg.choices) + "}"
    if field.is_list:
        return "N..." if field.base == list[int] else "TEXT..."
    return "JSON" if field.is_mapping else {int: "N", float: "X"}.get(field.base, "TEXT")


def _matching(known: Schema, word: str) -> tuple[list[Field], list[Retired]]:
    fields = list(known.fields.values())
    wanted = word.lower().lstrip("-").replace("-", "_")
    key = group_key(word.lstrip("-").replace("-", "_")).replace("_", "")
    short = known.short(word.lstrip("-"))
    exact = known.named(wanted) or short
    if exact is not None:
        return [exact], []
    if wanted in known.retired:
        return [], [known.retired[wanted]]
    group = [f for f in fields if f.group.replace("_", "") == key]
    if group:
        return group, []
    plain = wanted.replace("_", " ")
    found = [f for f in fields if wanted in f.name or plain in f.arg.help.lower() or any(wanted in k for k in f.keys)]
    old = [entry for entry in known.retired.values() if wanted in entry.name]
    if not found and not old:
        raise UserError(f"--help={word}: no such group or argument.{nearest(wanted, [*known.titles, *known.fields])}")
    return found, old


def _show_rich(usage: str, intro: str, sections: list[Section], page: bool) -> None:
    from rich.console import Console

    console = Console()
    if not page:
        _write(console, usage, intro, sections)
        return
    with console.pager(styles=True):
        _write(console, usage, intro, sections)


def _write(console: Console, usage: str, intro: str, sections: list[Section]) -> None:
    from rich.table import Table
    from rich.text import Text

    console.print(Text("Usage: ", style="bold yellow") + Text(usage, style="bold"))
    console.print()
    console.print(Text(intro))
    for section in sections:
        console.print()
        console.print(Text(section.title + ":", style="bold yellow"))
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
        table.add_column(no_wrap=False, max_width=34, min_width=22)
        table.add_column()
        for head, text in section.rows:
            help_text = Text(text)
            help_text.highlight_regex(rf"({NOT_YET}|{ONLY}):.*$", style="yellow")
            table.add_row(Text(head, style="cyan"), help_text)
        console.print(table)
