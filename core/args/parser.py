"""The command line, read against the schema. All problems are collected; none stops the reading.

Owns: flags, switches, short spellings, dotted keys, the positional model. Never does: read files or the environment,
know plugins, or say what the engine does not serve (`sources` does, for every source). Called by: the command line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from core.api.errors import nearest
from core.args.arg import HIDDEN, Given
from core.args.convert import describe, loose, understand
from core.args.legacy import translate
from core.args.retired import Retired
from core.args.schema import Field, Schema, schema

ORIGIN = "command line"
_NEGATIVE = re.compile(r"-\d")
_ATTACHED = re.compile(r"([A-Za-z][A-Za-z-]*)(\d+)", re.ASCII)


@dataclass(slots=True)
class Parsed:
    """What was understood, and every problem. trees: mappings while they are put together from JSON and dotted keys."""

    values: dict[str, Given] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    trees: dict[str, dict[str, Any]] = field(default_factory=dict)


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
                self._flag(token, "--", rest, out)
            elif token.startswith("-") and len(token) > 1 and not _NEGATIVE.match(token):
                self._flag(token, "-", rest, out)
            else:
                self._take_positional(token, out)
        self._finish(out)
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

    def _flag(self, token: str, dashes: str, rest: list[str], out: Parsed) -> None:
        """One flag and what belongs to it. dashes: `--` for a long name, `-` for a short one."""
        name, equals, text = token[len(dashes) :].partition("=")
        value = text if equals else None
        head, dot, path = name.partition(".")
        if dashes == "-" and (match := _ATTACHED.fullmatch(name)) and self._schema.short(match[1]) and value is None:
            head, value = match[1], match[2]
        found = self._named(head, dashes)
        if dot and found is not None and found.name == "optimization_level":
            out.warnings.append(f"{dashes}{name}: an older spelling; it is read as -cc.{path}.")
            found = self._schema.fields["compilation_config"]
        if found is not None and (not dot or found.is_mapping):
            if dot:
                self._dotted(found, path, _next_value(rest) if value is None else value, out)
            else:
                self._value(found, dashes + head, value, rest, out)
            return
        off = head[3:] if dashes == "--" and head.replace("_", "-").startswith("no-") and not dot else ""
        old = self._retired(off or head, dashes)
        if old is not None:
            self._take_retired(old, dashes + name, bool(off), value, rest, out)
        elif off and (switch := self._named(off, dashes)) is not None and switch.base is bool:
            self._switch_off(switch, token, value is not None, out)
        else:
            self._unknown(token, dashes + name, rest, out)

    def _named(self, head: str, dashes: str) -> Field | None:
        found = self._schema.named(head) if dashes == "--" else self._schema.short(head)
        return None if found is None or found.arg.internal else found

    def _retired(self, head: str, dashes: str) -> Retired | None:
        if dashes == "--":
            return self._schema.gone(head)
        return next((old for old in self._schema.retired.values() if old.short == head), None)

    def _take_retired(
        self, old: Retired, shown: str, off: bool, value: str | None, rest: list[str], out: Parsed
    ) -> None:
        """A deprecated argument is translated with one warning; a removed one is a problem."""
        if value is None and not old.switch:
            value = _next_value(rest)
        told = old.sentence(shown)
        if old.status == "removed":
            out.problems.append(told)
            return
        out.warnings.append(told)
        if not old.target:
            return
        found = self._schema.fields[old.target]
        given: Any = value if value is not None else (not off if old.switch else None)
        try:
            meant = understand(found, given)
        except ValueError as error:
            out.problems.append(f"{shown} {given}: {_sentence(error)}")
            return
        self._store(found, not meant if old.inverted else meant, shown, out)

    def _switch_off(self, found: Field, token: str, has_value: bool, out: Parsed) -> None:
        if has_value:
            out.problems.append(f"{token}: takes no value; write {found.flag}=false or --no-{found.flag[2:]}.")
        else:
            self._store(found, False, token, out)

    def _value(self, found: Field, shown: str, value: str | None, rest: list[str], out: Parsed) -> None:
        given: Any = value
        if value is None and found.base is bool:
            given = True
        elif value is None and found.is_list:
            words = [rest.pop(0) for _ in range(_run_length(rest))]
            given = words[0] if len(words) == 1 else words or None
        elif value is None:
            given = _next_value(rest)
        if given is None:
            given = found.arg.bare
        if given is None:
            out.problems.append(f"{shown}: a value is missing; expected {describe(found)}.")
            return
        self._store(found, given, shown, out)

    def _dotted(self, found: Field, path: str, value: str | None, out: Parsed) -> None:
        append = path.endswith("+")
        path = path.removesuffix("+")
        shown = f"{found.flag}.{path}"
        keys = path.replace("-", "_").split(".")
        if value is None or not all(keys):
            problem = "a value is missing" if value is None else "a key is empty"
            out.problems.append(f"{shown}: {problem}; expected {found.flag}.KEY VALUE.")
            return
        node = out.trees.setdefault(found.name, {})
        declared: Field | None = found
        for key in keys[:-1]:
            declared = declared.keys.get(key) if declared is not None else None
            child = node.setdefault(key, {})
            if not isinstance(child, dict):
                out.problems.append(f"{shown}: '{key}' already has the value {child!r} and cannot have keys.")
                return
            node = child
        last = keys[-1]
        if append:
            self._append(node, last, shown, value, out)
            return
        leaf = declared.keys.get(last) if declared is not None else None
        given = value if leaf is not None and not leaf.is_mapping else loose(value)
        if last in node and node[last] != given:
            out.warnings.append(f"{shown}: given twice; the last one, {value}, is used.")
        node[last] = given

    def _append(self, node: dict[str, Any], key: str, shown: str, value: str, out: Parsed) -> None:
        """`--x.key+ a` and `--x.key+=a,b`: further items of a list."""
        before = node.get(key, [])
        if not isinstance(before, list):
            out.problems.append(f"{shown}+ {value}: '{key}' already has the value {before!r}, which is no list.")
            return
        node[key] = [*before, *(loose(item) for item in value.split(","))]

    def _store(self, found: Field, value: Any, shown: str, out: Parsed) -> None:
        text = value if isinstance(value, str) else " ".join(map(str, value)) if isinstance(value, list) else str(value)
        text = HIDDEN if found.arg.secret else text
        written = text if shown == text else shown if isinstance(value, bool) else f"{shown} {text}"
        translated, warnings = translate(found, value)
        out.warnings += warnings
        try:
            converted = understand(found, translated)
        except ValueError as error:
            out.problems.append(f"{written}: {_sentence(error)}")
            return
        if isinstance(converted, dict):
            tree = out.trees.setdefault(found.name, {})
            tree |= {key: entry for key, entry in _copy(converted).items() if key not in tree}
            return
        before = out.values.get(found.name)
        if before is not None and before.value != converted:
            last = "the last value" if found.arg.secret else f"the last value, {converted},"
            out.warnings.append(f"{found.flag}: given twice; {last} is used.")
        out.values[found.name] = Given(converted, ORIGIN)

    def _finish(self, out: Parsed) -> None:
        """Mappings are converted when all their parts are known."""
        for name, tree in out.trees.items():
            found = self._schema.fields[name]
            translated, warnings = translate(found, tree)
            out.warnings += [warning for warning in warnings if warning not in out.warnings]
            try:
                out.values[name] = Given(understand(found, translated), ORIGIN)
            except ValueError as error:
                out.problems.append(f"{found.flag}: {_sentence(error)}")

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
