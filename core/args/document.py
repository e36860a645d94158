"""The reference documentation of all arguments, as Markdown: `python -m core.args.document > docs/arguments.md`.

Owns: the text of docs/arguments.md. Never does: write a file. Called by: a person, and the test that it is current.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from core.args.convert import describe
from core.args.help import not_yet, shown_default
from core.args.schema import Field, schema

_INTRO = """# Engine arguments

Generated from the schema by `python -m core.args.document`; do not edit.

Every argument has the same name on the command line (`--max-model-len 4k`), in a YAML file (`max_model_len: 4k`, read
with `--config FILE`) and in Python (`LLM(max_model_len="4k")`). The command line wins over the file, the file over the
environment. Unknown names, keys and values are errors that name the nearest valid one, and all problems are reported
together.

| spelling | meaning |
|---|---|
| `--flag`, `--no-flag`, `--flag=false` | a switch |
| `--max-model-len`, `--max_model_len` | the same |
| `2048`, `25.6k`, `1K`, `1G` | lower case is a power of 1000, upper case a power of 1024; fractions go with lower case |
| `--hf-overrides.rope.factor 2` | a key of a JSON argument |
| `--x.key+ a`, `--x.key+=a,b` | further items of a list in a JSON argument |
| `-O2`, `-tp 1`, `-cc.mode=0` | short spellings |
| `none` | an argument that may be unset is unset |
| `--help=GROUP`, `--help=ARGUMENT`, `--help=WORD`, `--help=KIND.NAME` | a part of the help, or a plugin's own arguments |
| `--help=listgroup`, `--help=page` | all groups; everything in a pager |

An argument that is *not served yet* is declared, so that it is checked and explained, but any value other than its
default is an error."""


def document() -> str:
    """The whole file, with a newline at its end."""
    known = schema()
    fields = list(known.fields.values())
    served = sum(field.is_served for field in fields)
    old = list(known.retired.values())
    removed = sum(entry.status == "removed" for entry in old)
    parts = [
        _INTRO,
        f"{len(fields)} arguments: {served} served, {len(fields) - served} not served yet. {len(old) - removed} older "
        f"ones are translated, {removed} are removed.",
    ]
    for group, title in known.titles.items():
        members = [field for field in fields if field.group == group]
        parts.append(f"## {title}\n\nGroup `{group}`.\n\n" + _rows(_row(field, field.flags) for field in members))
        for field in members:
            if field.keys:
                parts.append(f"Keys of `{field.flag}`:\n\n" + _rows(_key_rows(field, "")))
    table = _table(
        ("argument", "status", "now"),
        ((_code(entry.flag), entry.status, _instead(entry.sentence("").partition("; ")[2])) for entry in old),
    )
    parts.append(f"## Older arguments\n\n{table}")
    return "\n\n".join(parts) + "\n"


def _rows(rows: Iterable[tuple[str, str, str, str, str]]) -> str:
    return _table(("argument", "expects", "default", "since", "meaning"), rows)


def _row(field: Field, names: Sequence[str]) -> tuple[str, str, str, str, str]:
    arg = field.arg
    meaning = arg.help
    if arg.unserved and not field.is_served:
        meaning += f" *{not_yet(field)}: {arg.unserved}.*"
    elif arg.unserved and arg.served is not None:
        values = ", ".join("unset" if value is None else f"`{value}`" for value in arg.served if value != "")
        meaning += f" *Served: {values}; {arg.unserved}.*"
    shown = ", ".join(_code(name) for name in names) or f"{_code(field.name)} (Python only)"
    default = shown_default(field)
    return shown, describe(field), _code(default) if "*" in default else default, arg.since, meaning


def _key_rows(field: Field, prefix: str) -> list[tuple[str, str, str, str, str]]:
    rows = []
    for key in field.keys.values():
        rows.append(_row(key, (prefix + key.name,)))
        rows += _key_rows(key, f"{prefix}{key.name}.")
    return rows


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _code(text: str) -> str:
    return f"`{text}`"


def _instead(text: str) -> str:
    return text.rstrip(".")


if __name__ == "__main__":
    sys.stdout.write(document())
