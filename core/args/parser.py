"""The command line, read against the schema. All problems are collected; none stops the reading.

Owns: flags, switches, short spellings, dotted keys, the positional model. Never does: read files or the environment,
or know plugins. Called by: the command line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from core.api.errors import nearest
from core.args.arg import Given
from core.args.convert import convert, describe, loose
from core.args.schema import Field, Schema, schema

ORIGIN = "command line"
_NEGATIVE = re.compile(r"-\d")


@dataclass(slots=True)
class Parsed:
    """What was understood, and every problem."""

    values: dict[str, Given] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


class Parser:
    """Reads one command line. also: flags of the command itself, for suggestions only."""

    def __init__(self, *, positional: str | None = "model", also: Sequence[str] = ()) -> None:
        self._schema: Schema = schema()
        self._positional = positional
        self._also = tuple(also)

    def parse(self, argv: Sequence[str]) -> Parsed:
        """Read `argv` (without program and command names)."""
        out = Parsed()
        rest = list(argv)
        while rest:
            token = rest.pop(0)
            if token == "--":
                for word in rest:
                    self._take_positional(word, out)
                break
            if token.startswith("--"):
                self._long(token, rest, out)
            elif token.startswith("-") and len(token) > 1 and not _NEGATIVE.match(token):
                self._short(token, rest, out)
            else:
                self._take_positional(token, out)
        return out

    def _take_positional(self, word: str, out: Parsed) -> None:
        if self._positional is None:
            out.problems.append(f"'{word}': unexpected; this command takes no such argument.")
            return
        found = self._schema.fields[self._positional]
        if self._positional in out.values and out.values[self._positional].value != word:
            before = out.values[self._positional].value
            out.problems.append(f"'{word}': unexpected, the {self._positional} is already '{before}'.")
            return
        self._store(found, word, word, out)

    def _long(self, token: str, rest: list[str], out: Parsed) -> None:
        name, equals, value = token[2:].partition("=")
        head, dot, path = name.partition(".")
        found = self._schema.named(head)
        if found is None and head.replace("_", "-").startswith("no-") and not dot:
            self._switch_off(token, head[3:], bool(equals), out)
            return
        if found is None or (dot and not found.is_mapping):
            self._unknown(token, f"--{name}", rest, out)
            return
        if dot:
            self._dotted(found, path, value if equals else _next_value(rest), out)
        else:
            self._value(found, f"--{head}", value if equals else None, rest, out)

    def _short(self, token: str, rest: list[str], out: Parsed) -> None:
        name, equals, value = token[1:].partition("=")
        head, dot, path = name.partition(".")
        found = self._schema.short(head)
        if found is None:
            self._unknown(token, f"-{name}", rest, out)
        elif dot and found.is_mapping:
            self._dotted(found, path, value if equals else _next_value(rest), out)
        else:
            self._value(found, f"-{head}", value if equals else None, rest, out)

    def _switch_off(self, token: str, name: str, has_value: bool, out: Parsed) -> None:
        found = self._schema.named(name)
        if found is None or found.base is not bool:
            self._unknown(token, token, [], out)
        elif has_value:
            out.problems.append(f"{token}: takes no value; write {found.flag}=false or --no-{found.flag[2:]}.")
        else:
            self._store(found, False, token, out)

    def _value(self, found: Field, shown: str, value: str | None, rest: list[str], out: Parsed) -> None:
        if found.base is bool and value is None:
            self._store(found, True, shown, out)
            return
        if found.is_list and value is None:
            words = [rest.pop(0) for _ in range(_run_length(rest))]
            given: Any = words[0] if len(words) == 1 else words
            if not words:
                out.problems.append(f"{shown}: a value is missing; expected {describe(found)}.")
                return
            self._store(found, given, shown, out)
            return
        value = _next_value(rest) if value is None else value
        if value is None:
            out.problems.append(f"{shown}: a value is missing; expected {describe(found)}.")
            return
        self._store(found, value, shown, out)

    def _dotted(self, found: Field, path: str, value: str | None, out: Parsed) -> None:
        shown = f"{found.flag}.{path}"
        keys = path.replace("-", "_").split(".")
        if value is None or not all(keys):
            problem = "a value is missing" if value is None else "a key is empty"
            out.problems.append(f"{shown}: {problem}; expected {found.flag}.KEY VALUE.")
            return
        before = out.values.get(found.name)
        tree: dict[str, Any] = _copy(before.value) if before is not None and before.value else {}
        node = tree
        for key in keys[:-1]:
            child = node.setdefault(key, {})
            if not isinstance(child, dict):
                out.problems.append(f"{shown}: '{key}' already has the value {child!r} and cannot have keys.")
                return
            node = child
        last = keys[-1].replace("-", "_")
        if last in node and node[last] != loose(value):
            out.warnings.append(f"{shown}: given twice; the last one, {value}, is used.")
        node[last] = loose(value)
        out.values[found.name] = Given(tree, ORIGIN)

    def _store(self, found: Field, value: Any, shown: str, out: Parsed) -> None:
        try:
            converted = convert(found, value)
        except ValueError as error:
            text = value if isinstance(value, str) else repr(value)
            out.problems.append(
                f"{shown} {text}: {_sentence(error)}" if value != shown else f"{found.flag} {text}: {error}."
            )
            return
        before = out.values.get(found.name)
        if before is not None and found.is_mapping and isinstance(converted, dict):
            converted = {**converted, **before.value} if before.value else converted
        elif before is not None and before.value != converted:
            out.warnings.append(f"{found.flag}: given twice; the last value, {converted}, is used.")
        out.values[found.name] = Given(converted, ORIGIN)

    def _unknown(self, token: str, shown: str, rest: list[str], out: Parsed) -> None:
        flag = shown.partition(".")[0].replace("_", "-")
        valid = [*self._schema.flags(), *self._also]
        out.problems.append(f"{shown}: unknown argument.{nearest(flag, valid)} See --help for all.")
        if "=" not in token and rest and not rest[0].startswith("-"):
            rest.pop(0)


def _sentence(error: ValueError) -> str:
    text = str(error)
    return text if text.endswith(("?", ".")) else text + "."


def _next_value(rest: list[str]) -> str | None:
    """The next token unless it is a flag; negative numbers are values."""
    if not rest or (rest[0].startswith("-") and len(rest[0]) > 1 and not _NEGATIVE.match(rest[0])):
        return None
    return rest.pop(0)


def _run_length(rest: list[str]) -> int:
    """How many tokens from here on are values."""
    return next((i for i, word in enumerate(rest) if word.startswith("-") and len(word) > 1), len(rest))


def _copy(tree: Any) -> Any:
    return {key: _copy(value) for key, value in tree.items()} if isinstance(tree, dict) else tree
