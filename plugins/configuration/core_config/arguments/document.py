"""The reference documentation of all arguments, as Markdown: `python -m core_config.arguments.document > docs/arguments.md`.

Owns: the text of docs/arguments.md. Never does: write a file. Called by: developers, and the test that the page is current.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from core.args.schema import Field, schema
from core_config.arguments import foreign
from core_config.arguments.convert import describe
from core_config.arguments.help import shown_default

_INTRO = """# Engine arguments

Generated from the schema by `python -m core_config.arguments.document`; do not edit.

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
| `-q gguf`, `-ac.NAME.KEY=1` | short spellings |
| `none` | an argument that may be unset is unset |
| `--help=GROUP`, `--help=ARGUMENT`, `--help=WORD`, `--help=KIND.NAME` | a part of the help, or a plugin's own arguments |
| `--help`, `--help=all`, `--help=page` | the common arguments; everything; everything in a pager |
| `--help=listgroup` | all groups |"""

_APPENDIX = """## Names that are not served

Other engines, and older versions of them, have more arguments. Each of these names is an error that says why it is not
here, unless its value asks for what holds anyway: those in brackets, and for a switch to be off."""


def document() -> str:
    """Return the whole page, with a newline at its end."""
    known = schema()
    fields = list(known.fields.values())
    parts = [_INTRO, f"There are {len(fields)} arguments."]
    for group, title in known.titles.items():
        members = [field for field in fields if field.group == group]
        parts.append(f"## {title}\n\nGroup `{group}`.\n\n" + _rows(_row(field, field.flags) for field in members))
        for field in members:
            if field.keys:
                parts.append(f"Keys of `{field.flag}`:\n\n" + _rows(_key_rows(field, "")))
    parts += [_APPENDIX, _not_yet(), "Others are spelled differently, or not needed:", _others()]
    return "\n\n".join(parts) + "\n"


def _not_yet() -> str:
    """Return the table of missing capabilities, one row per capability."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for row in foreign.names():
        if row.kind == "not yet":
            flags = by_reason.setdefault((row.topic, row.text), [])
            flags.append(_with_neutral(row))
    rows = []
    for (topic, text), flags in by_reason.items():
        sentence = f"{text[0].upper()}{text[1:]}."
        rows.append((topic, sentence, ", ".join(flags)))
    return _table(("what is missing", "today", "names"), rows)


def _with_neutral(row: foreign.Foreign) -> str:
    """Return a flag, followed in brackets by the values that are accepted because they have no effect."""
    words = [word for word in row.neutral if word not in foreign.UNSAID and row.takes != "switch"]
    shown = f" ({', '.join(words)})" if words else ""
    return _code(row.flag) + shown


def _others() -> str:
    rows = []
    for row in foreign.names():
        if row.kind != "not yet":
            sentence = f"{row.sentence[0].upper()}{row.sentence[1:]}."
            rows.append((_code(row.flag), sentence))
    return _table(("name", "now"), rows)


def _rows(rows: Iterable[tuple[str, str, str, str, str]]) -> str:
    return _table(("argument", "expects", "default", "since", "meaning"), rows)


def _row(field: Field, names: Sequence[str]) -> tuple[str, str, str, str, str]:
    shown = ", ".join(_code(name) for name in names)
    default = shown_default(field)
    if "*" in default:
        default = _code(default)
    return shown, describe(field), default, field.arg.since, field.arg.help


def _key_rows(field: Field, prefix: str) -> list[tuple[str, str, str, str, str]]:
    rows = []
    for key in field.keys.values():
        rows.append(_row(key, (prefix + key.name,)))
        rows += _key_rows(key, f"{prefix}{key.name}.")
    return rows


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for row in rows:
        cells = " | ".join(map(_cell, row))
        lines.append(f"| {cells} |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _code(text: str) -> str:
    return f"`{text}`"


if __name__ == "__main__":
    sys.stdout.write(document())
