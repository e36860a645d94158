"""Guides from other engines, made from tables: `python -m tests.docs.guides` writes them.

Owns: the text of docs/from-vllm.md and docs/from-llama.cpp.md, and the reading of `llama_server.txt` and `guides.toml`.
vLLM's arguments are those of tests/args/argument_names.json and of the engine's own table of foreign names. Never does:
resolve a command. Called by: a person, and test_guides.py, which compares the pages and looks up every name on them.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from core.args.schema import schema
from core_config.arguments import foreign

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"
NAMES = HERE.parent / "args" / "argument_names.json"
LLAMA = HERE / "llama_server.txt"
FLAG = re.compile(r"--[a-z][a-z0-9._=-]*[a-z0-9_]|--[a-z]+")
KINDS = {"use": "", "field": "", "holds": "Not needed: ", "no": "Not served: "}
"""{kind of a row of llama_server.txt: words before its text}."""

_VLLM = """# From vLLM

Written by `python -m tests.docs.guides` from `tests/docs/guides.toml`, `tests/args/argument_names.json` and the table of
foreign names; edit those.

Arguments, fields of requests and routes have vLLM's names, so most commands and clients go on with `vllm` replaced by `core`.
`core config explain MODEL ARGUMENTS` says what becomes of a command without loading a weight.

```bash
{run}
```

## Commands and names

| vLLM | here |
|---|---|
{moves}

## What differs

{differs}

## Arguments

Of {all} arguments, those of older and of newer versions of vLLM included, {same} have the same name here. The others are
errors with a sentence, unless their value asks for what holds anyway (in brackets). Groups are those of vLLM's help;
[arguments](arguments.md) says what each argument means here.
"""

_LLAMA = """# From llama.cpp

Written by `python -m tests.docs.guides` from `tests/docs/guides.toml` and `tests/docs/llama_server.txt`; edit those.

GGUF files are served as they are, with their tokenizer and chat template, and OpenAI clients need only another address.

```bash
{run}
```

## Commands and routes

| llama.cpp | here |
|---|---|
{moves}

## What differs

{differs}

## Arguments of llama-server

All {all} names, as the README of llama-server has them at commit 00dc8057. {other} of them have no counterpart, and the
table says why.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """Some arguments of llama-server that one sentence is about.

    topic: heading that they belong to.
    names: all spellings, with dashes.
    kind:  a key of `KINDS`.
    text:  what serves them, or why nothing does.
    """

    topic: str
    names: tuple[str, ...]
    kind: str
    text: str


@cache
def tables() -> dict[str, dict[str, Any]]:
    """Return the tables of guides.toml."""
    return tomllib.loads((HERE / "guides.toml").read_text(encoding="utf-8"))


def llama_rows() -> Iterator[Row]:
    """Yield the rows of llama_server.txt. Raises ValueError for a line without three cells."""
    topic = ""
    for line in LLAMA.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            topic = line.removeprefix("## ")
        elif line and not line.startswith("#"):
            names, kind, text = line.split(" | ", 2)
            yield Row(topic, tuple(names.split()), kind, text)


def vllm_names() -> dict[str, list[str]]:
    """Return vLLM's arguments by group; those that the list does not have are newer, and have rows of their own."""
    groups: dict[str, list[str]] = {}
    for row in json.loads(NAMES.read_text(encoding="utf-8")):
        groups.setdefault(row["group"], []).append(row["name"])
    listed = {name for names in groups.values() for name in names}
    groups["Newer arguments"] = [
        row.name for row in foreign.names() if row.name not in listed and not row.name.startswith("_")
    ]
    return groups


def page_of_vllm() -> str:
    """Return the guide from vLLM."""
    groups = vllm_names()
    known = schema()
    same = [name for names in groups.values() for name in names if known.named(name)]
    parts = [_filled(_VLLM, "vllm", same=len(same), all=sum(map(len, groups.values())))]
    for group, names in groups.items():
        here = [known.named(name) for name in names]
        flags = ", ".join(f"`{field.flag}`" for field in here if field)
        others = [foreign.named(name) for name in names if not known.named(name)]
        rows = [(f"`{row.flag}`{_neutral(row)}", _sentence(row)) for row in others if row]
        parts.append(f"### {group}\n")
        parts += [f"The same: {flags}.\n"] if flags else []
        parts += [_table(("vLLM", "here"), rows) + "\n"] if rows else []
    return "\n".join(parts)


def page_of_llama() -> str:
    """Return the guide from llama.cpp."""
    rows = list(llama_rows())
    lacking = sum(len(row.names) for row in rows if row.kind == "no")
    parts = [_filled(_LLAMA, "llama", all=sum(len(row.names) for row in rows), other=lacking)]
    for topic in dict.fromkeys(row.topic for row in rows):
        shown = [
            (", ".join(f"`{name}`" for name in row.names), KINDS[row.kind] + row.text + ".")
            for row in rows
            if row.topic == topic
        ]
        parts.append(f"### {topic}\n\n{_table(('llama-server', 'here'), shown)}\n")
    return "\n".join(parts)


PAGES = {"from-vllm.md": page_of_vllm, "from-llama.cpp.md": page_of_llama}
"""{file below docs/: what makes its text}."""


def _filled(text: str, engine: str, **values: Any) -> str:
    """Return the beginning of a page with the tables of its engine."""
    table = tables()[engine]
    return text.format(
        run="\n".join(table["run"]),
        moves="\n".join(f"| {row['there']} | {row['here']} |" for row in table["moves"]),
        differs="\n".join(f"- {sentence}" for sentence in table["differs"]),
        **values,
    )


def _neutral(row: foreign.Foreign) -> str:
    """Return the values that change nothing, in brackets."""
    words = [word for word in row.neutral if word not in foreign.UNSAID and row.takes != "switch"]
    return f" ({', '.join(words)})" if words else ""


def _sentence(row: foreign.Foreign) -> str:
    """Return what a cell says of an argument that has another name here, or none."""
    if row.kind == "not yet":
        text = f"Not served: {row.text}."
    elif row.kind == "removed":
        text = f"Not needed: {row.text}."
    elif row.kind == "elsewhere":
        text = f"{row.text[0].upper()}{row.text[1:]}."
    else:
        text = f"{row.sentence[0].upper()}{row.sentence[1:]}."
    return FLAG.sub(r"`\g<0>`", text)


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, *rows)]
    return "\n".join([lines[0], "|---|---|", *lines[1:]])


def main() -> None:
    """Write both pages."""
    for name, made in PAGES.items():
        (DOCS / name).write_text(made(), encoding="utf-8")


if __name__ == "__main__":
    main()
