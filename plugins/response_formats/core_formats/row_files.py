"""The built-in rows, and the reading of row files.

Owns: the reading of row files, rows by name, rows composed of two. Never does: parse answers. Called by: the server's
arguments, detection, the documentation.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Literal

import msgspec

from core.api.errors import UserError, nearest
from core.plugin.kinds import normalize
from core_formats.response_format import ResponseFormat

FormatKind = Literal["tools", "reasoning"]


class RowFile(msgspec.Struct, forbid_unknown_fields=True):
    """A file of rows."""

    row: list[ResponseFormat]


def read_rows(text: str) -> list[ResponseFormat]:
    """Parse the rows of a TOML text. Raises msgspec.ValidationError, tomllib.TOMLDecodeError."""
    return msgspec.convert(tomllib.loads(text), RowFile).row


@cache
def own_rows() -> tuple[ResponseFormat, ...]:
    """Return the built-in rows, in the order of their files' names."""
    folder = resources.files("core_formats") / "rows"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".toml")), key=lambda file: file.name)
    return tuple(row for file in files for row in read_rows(file.read_text(encoding="utf-8")))


def names_of(row: ResponseFormat, kind: FormatKind) -> tuple[str, ...]:
    """Return the names under which arguments select a row."""
    return row.tool_names if kind == "tools" else row.reasoning_names


def format_named(name: str, kind: FormatKind, rows: tuple[ResponseFormat, ...] | None = None) -> ResponseFormat:
    """Return the row that a parser's name selects. rows: to search, the built-in ones by default. Raises UserError."""
    among = own_rows() if rows is None else rows
    wanted = normalize(name)
    for row in among:
        if wanted in map(normalize, names_of(row, kind)):
            return row
    known = sorted(name for row in among for name in names_of(row, kind))
    argument = "--tool-call-parser" if kind == "tools" else "--reasoning-parser"
    near = nearest(name, known)
    raise UserError(
        f"{argument} {name}: there is no response format of that name.{near} There are: {', '.join(known)}."
    )


def composed(tools: ResponseFormat | None, reasoning: ResponseFormat | None) -> ResponseFormat:
    """Combine the calls of one row with the reasoning of another; None leaves out calls or reasoning."""
    if tools is not None and tools is reasoning:
        return tools
    thinks = None if reasoning is None else reasoning.reasoning
    drops = () if reasoning is None else (*(reasoning.content or ()), *reasoning.dropped)
    if tools is None:
        name = "text" if reasoning is None else reasoning.name
        return ResponseFormat(name=name, reasoning=thinks, dropped=drops)
    name = tools.name if reasoning is None else f"{tools.name}+{reasoning.name}"
    dropped = tuple(dict.fromkeys((*tools.dropped, *drops)))
    return msgspec.structs.replace(tools, name=name, reasoning=thinks, dropped=dropped)
