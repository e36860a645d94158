"""The parser of the command line, driven by the schema. All problems are collected; none stops the parsing.

Owns: flags, switches, short names, dotted keys, the positional model. Never does: read files or the environment,
know plugins, or refuse what the engine does not serve (`sources` does, for every source). Called by: the command line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from core.api.errors import nearest
from core.args.arg import HIDDEN, Given
from core.args.schema import Field, schema
from core_config.arguments import lookup
from core_config.arguments.convert import convert, describe
from core_config.arguments.plain import loose

ORIGIN = "command line"
_NEGATIVE = re.compile(r"-\d")
_ATTACHED = re.compile(r"([A-Za-z][A-Za-z-]*)(\d+)", re.ASCII)


@dataclass(slots=True)
class Parsed:
    """The result of parsing a command line: its values, and every problem.

    values: values by name, including those of undeclared names, as they were written.
    words:  words without a flag, of a command that takes several.
    trees:  mappings under construction from JSON and dotted keys.
    """

    values: dict[str, Given] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    trees: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Flag:
    """The parts of one token that starts with a dash.

    token: the whole token.
    dashes: `--` for a long name, `-` for a short one.
    head:  the name, without dashes.
    path:  the keys after the first dot; None without a dot.
    value: the text after `=`, or the digits of `-O2`; None when there is neither.
    """

    token: str
    dashes: str
    head: str
    path: str | None
    value: str | None

    @property
    def shown(self) -> str:
        """The name with its dashes and keys, as it was written."""
        path = "" if self.path is None else f".{self.path}"
        return f"{self.dashes}{self.head}{path}"


class Parser:
    """A parser for the command line of one command.

    positional: argument that a word without a flag sets; None: such words are refused.
    collects: whether words without a flag are collected instead.
    also: flags of the command itself, for suggestions only.
    """

    def __init__(self, *, positional: str | None = "model", collects: bool = False, also: Sequence[str] = ()) -> None:
        self._positional = positional
        self._collects = collects
        self._also = tuple(also)

    def parse(self, argv: Sequence[str]) -> Parsed:
        """Parse `argv`, which has no program and command names."""
        out = Parsed()
        rest = list(argv)
        while rest:
            token = rest.pop(0)
            if token == "--":
                for word in rest:
                    self._take_positional(word, out)
                break
            if _is_flag(token):
                self._take_flag(_split(token), rest, out)
            else:
                self._take_positional(token, out)
        _finish_trees(out)
        return out

    def _take_positional(self, word: str, out: Parsed) -> None:
        if self._collects:
            out.words.append(word)
            return
        if self._positional is None:
            out.problems.append(f"'{word}': unexpected; this command takes no such argument.")
            return
        before = out.values.get(self._positional)
        if before is not None and before.value != word:
            # `--enable-prefix-caching false` reads like an argument with a value.
            is_switched = not {word, before.value}.isdisjoint(("true", "false"))
            hint = " A switch takes no further word; write --NAME=false, or --no-NAME." if is_switched else ""
            out.problems.append(f"'{word}': unexpected, the {self._positional} is already '{before.value}'.{hint}")
            return
        _store(schema().fields[self._positional], word, word, out)

    def _take_flag(self, flag: _Flag, rest: list[str], out: Parsed) -> None:
        """Read one flag, and take the words that belong to it from `rest`."""
        switch = _switched_off(flag)
        if switch is not None:
            _switch_off(switch, flag, out)
            return
        found = _named(flag)
        if found is not None and flag.path is None:
            _take_value(found, flag, rest, out)
        elif found is not None and flag.path is not None and found.is_mapping:
            value = _next_value(rest) if flag.value is None else flag.value
            _take_key(found, flag.path, value, out)
        else:
            self._take_unknown(flag, rest, out)

    def _take_unknown(self, flag: _Flag, rest: list[str], out: Parsed) -> None:
        name = f"{flag.dashes}{flag.head}".replace("_", "-")
        hint = nearest(name, [*lookup.flags(), *self._also])
        out.problems.append(f"{flag.shown}: unknown argument.{hint} See --help for all.")
        if flag.value is None and rest and not rest[0].startswith("-"):
            rest.pop(0)


def _split(token: str) -> _Flag:
    """Split a token into its parts; `-O2` becomes the short flag `O` with the value 2."""
    dashes = "--" if token.startswith("--") else "-"
    name, equals, text = token[len(dashes) :].partition("=")
    head, dot, path = name.partition(".")
    attached = _ATTACHED.fullmatch(name)
    if dashes == "-" and not equals and attached:
        letters, digits = attached.groups()
        if lookup.short(letters) is not None:
            return _Flag(token, dashes, letters, None, digits)
    return _Flag(token, dashes, head, path if dot else None, text if equals else None)


def _named(flag: _Flag) -> Field | None:
    """Return the argument that a flag names, declared or foreign."""
    if flag.dashes == "--":
        return lookup.named(flag.head)
    return lookup.short(flag.head)


def _switched_off(flag: _Flag) -> Field | None:
    """Return the switch that a flag `--no-...` turns off; None for every other flag."""
    head = flag.head.replace("_", "-")
    if flag.dashes != "--" or flag.path is not None or not head.startswith("no-"):
        return None
    found = lookup.named(head.removeprefix("no-"))
    if found is None or found.base is not bool:
        return None
    return found


def _switch_off(found: Field, flag: _Flag, out: Parsed) -> None:
    if flag.value is not None:
        out.problems.append(f"{flag.token}: takes no value; write {found.flag}=false or --no-{found.flag[2:]}.")
    else:
        _store(found, False, flag.token, out)


def _take_value(found: Field, flag: _Flag, rest: list[str], out: Parsed) -> None:
    """Store the value of a flag: its own text, or the words that follow it."""
    given: Any = flag.value
    if given is None and found.base is bool:
        given = True
    elif given is None and found.is_list:
        words = _take_values(rest)
        given = words[0] if len(words) == 1 else words or None
    elif given is None:
        given = _next_value(rest)
    if given is None:
        given = found.arg.bare
    if given is None:
        out.problems.append(f"{flag.dashes}{flag.head}: a value is missing; expected {describe(found)}.")
    else:
        _store(found, given, flag.dashes + flag.head, out)


def _take_key(found: Field, path: str, value: str | None, out: Parsed) -> None:
    """Store `--x.key value`; `key+` appends items to a list."""
    append = path.endswith("+")
    path = path.removesuffix("+")
    shown = f"{found.flag}.{path}"
    keys = path.replace("-", "_").split(".")
    if value is None or not all(keys):
        problem = "a value is missing" if value is None else "a key is empty"
        out.problems.append(f"{shown}: {problem}; expected {found.flag}.KEY VALUE.")
        return
    *parents, last = keys
    node = out.trees.setdefault(found.name, {})
    for key in parents:
        child = node.setdefault(key, {})
        if not isinstance(child, dict):
            out.problems.append(f"{shown}: '{key}' already has the value {child!r} and cannot have keys.")
            return
        node = child
    if append:
        _append(node, last, shown, value, out)
        return
    given = value if _reads_text(found, keys) else loose(value)
    if last in node and node[last] != given:
        out.warnings.append(f"{shown}: given twice; the last one, {value}, is used.")
    node[last] = given


def _reads_text(found: Field, keys: Sequence[str]) -> bool:
    """Whether a key is declared as a plain value, so that its declaration converts the text later."""
    declared: Field | None = found
    for key in keys:
        declared = None if declared is None else declared.keys.get(key)
    return declared is not None and not declared.is_mapping


def _append(node: dict[str, Any], key: str, shown: str, value: str, out: Parsed) -> None:
    """Append items to a list: `--x.key+ a` and `--x.key+=a,b`."""
    before = node.get(key, [])
    if not isinstance(before, list):
        out.problems.append(f"{shown}+ {value}: '{key}' already has the value {before!r}, which is no list.")
        return
    items = [loose(item) for item in value.split(",")]
    node[key] = [*before, *items]


def _store(found: Field, value: Any, shown: str, out: Parsed) -> None:
    """Convert and store a value; `shown` is the flag (or word) that it came with, for messages."""
    try:
        converted = convert(found, value)
    except ValueError as error:
        from core_config.arguments.foreign import older_value  # the table is read for mistakes only

        older = older_value(found.name, value)
        if older is None:
            out.problems.append(f"{_written(found, value, shown)}: {_sentence(error)}")
            return
        converted, sentence = older
        out.warnings.append(f"{_written(found, value, shown)}: {sentence}.")
    if isinstance(converted, dict):
        tree = out.trees.setdefault(found.name, {})
        for key, entry in converted.items():
            tree.setdefault(key, _copy(entry))
        return
    before = out.values.get(found.name)
    if before is not None and before.value != converted:
        last = "the last value" if found.arg.secret else f"the last value, {converted},"
        out.warnings.append(f"{found.flag}: given twice; {last} is used.")
    out.values[found.name] = Given(converted, ORIGIN)


def _finish_trees(out: Parsed) -> None:
    """Convert the mappings, now that all their parts are known."""
    for name, tree in out.trees.items():
        found = lookup.named(name)
        assert found is not None
        try:
            out.values[name] = Given(convert(found, tree), ORIGIN)
        except ValueError as error:
            out.problems.append(f"{found.flag}: {_sentence(error)}")


def _written(found: Field, value: Any, shown: str) -> str:
    """Return an argument with its value, as messages show them; a secret value is hidden."""
    if isinstance(value, bool):
        return shown
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    if text == shown:
        return shown
    return f"{shown} {HIDDEN if found.arg.secret else text}"


def _sentence(error: ValueError) -> str:
    text = str(error)
    return text if text.endswith(("?", ".")) else text + "."


def _is_flag(token: str) -> bool:
    """Whether a word is a flag; a negative number is a value."""
    if token.startswith("--"):
        return True
    return token.startswith("-") and len(token) > 1 and not _NEGATIVE.match(token)


def _next_value(rest: list[str]) -> str | None:
    """Take and return the next word, unless it is a flag."""
    if not rest or _is_flag(rest[0]):
        return None
    return rest.pop(0)


def _take_values(rest: list[str]) -> list[str]:
    """Take and return all words up to the next flag; here a negative number ends them too."""
    words: list[str] = []
    while rest:
        starts_flag = rest[0].startswith("-") and len(rest[0]) > 1
        if starts_flag:
            break
        words.append(rest.pop(0))
    return words


def _copy(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    return {key: _copy(value) for key, value in tree.items()}
