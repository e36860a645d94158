"""Names that other engines and older versions have for arguments, and that this engine does not take.

Owns: the rows of the table `foreign.txt`, which values of them ask for nothing, and the sentences about all others.
Never does: declare an argument (the group files do). Called by: parser, sources and convert when no declaration fits, and
by help, document and the plugin framework. The table is read when the first of them asks.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from core.api.errors import nearest
from core.args.arg import Arg
from core.args.schema import Field, flag_of
from core_config.arguments.plain import FALSE, TRUE, loose

Kind = Literal["not yet", "elsewhere", "removed", "older"]
Takes = Literal["switch", "value", "list", "keys"]

FILE = Path(__file__).with_name("foreign.txt")
UNSAID = frozenset({"none", '""', "{}", "[]"})  # neutral words that no sentence proposes


@dataclass(frozen=True, slots=True)
class Foreign:
    """One row of the table.

    name:    `tensor_parallel_size`; for a key its path, `eplb_config.policy`; for a value `kv_cache_dtype=fp8_inc`.
    shorts:  spellings with one dash, without it.
    kind:    what became of it, see the table's first lines.
    takes:   the form of its value.
    neutral: the values that ask for nothing, as they are written.
    text:    why it is not there; for `elsewhere` (and `older`, when it starts with `--`) what to write.
    topic:   what it belongs to, such as `LoRA adapters`.
    """

    name: str
    shorts: tuple[str, ...]
    kind: Kind
    takes: Takes
    neutral: tuple[str, ...]
    text: str
    topic: str

    @property
    def flag(self) -> str:
        """`--eplb-config.policy`."""
        return self.name if self.name.startswith("_") else flag_of(self.name)  # a keyword of Python has no flag

    @property
    def field(self) -> Field:
        """A declaration with which the parser finds the end of the value; the value is kept as it was written."""
        bases: dict[Takes, Any] = {"switch": bool, "list": list[Any]}
        base = bases.get(self.takes, Any)
        return Field(
            name=self.name,
            group=self.topic,
            base=base,
            optional=True,
            arg=Arg(self.text, short=self.shorts),
            raw_default=None,
            keys={},
            declared=False,
        )

    @property
    def sentence(self) -> str:
        """The sentence for the user, without the name before it and the full stop behind it."""
        if self.kind == "elsewhere":
            return f"there is no such argument here; use {self.text}"
        if self.kind == "removed":
            return f"removed, as {self.text}; leave it out"
        if self.kind == "older":
            way_out = f"use {self.text}" if self.text.startswith("--") else f"{self.text}; leave it out"
            return f"deprecated; {way_out}"
        words = [word for word in self.neutral if word not in UNSAID]
        way_out = f"use {' or '.join(words)}" if len(words) > 1 else "leave it out"
        return f"this engine does not serve it yet: {self.text}; {way_out}"

    def is_neutral(self, value: Any) -> bool:
        """Whether `value`, as a user wrote it, asks for nothing."""
        if value is None or value in ([], (), {}):
            return bool(self.neutral)
        if isinstance(value, (list, tuple)):
            value = " ".join(map(str, value))
        return any(_is_same(value, word) for word in self.neutral)


Refusal = tuple[str, Any, str]
"""A name or path, the value that was asked for, and why it is refused."""


def refusals(row: Foreign, value: Any) -> list[Refusal]:
    """Every part of `value` that asks for something; a mapping is looked at key by key."""
    if not isinstance(value, Mapping) or not value:
        return [] if row.is_neutral(value) else [(row.name, value, row.sentence)]
    found: list[Refusal] = []
    for key, part in value.items():
        path = f"{row.name}.{str(key).replace('-', '_')}"
        inner = table().get(path)
        if inner is not None:
            found += refusals(inner, part)
        else:
            found.append((path, part, row.sentence + _known_key(row, str(key))))
    return found


def named(name: str) -> Foreign | None:
    """The row called `name`, with dashes or underscores."""
    row = table().get(name.replace("-", "_"))
    if row is None or not row.name.isidentifier():
        return None
    return row


def with_short(name: str) -> Foreign | None:
    """The row with the short spelling `name` (without its dash)."""
    return next((row for row in table().values() if name in row.shorts), None)


def names() -> list[Foreign]:
    """All rows but those of keys and of single values."""
    return [row for row in table().values() if row.name.isidentifier()]


def keys_of(argument: str) -> list[Foreign]:
    """The rows of an argument's keys, and of theirs; declared keys have none."""
    prefix = argument + "."
    return [other for other in table().values() if other.name.startswith(prefix) and "=" not in other.name]


def refused_value(argument: str, value: Any) -> str:
    """Why `value` of a declared argument is none of its choices, to stand before the choices; empty when nothing is known."""
    row = table().get(f"{argument}={value}")
    return "" if row is None else f"this engine does not serve it yet: {row.text}; "


class WithNeutral(dict[str, Any]):
    """Values of arguments by name; a foreign name gives the value that its absence means, so that plugins may ask for it."""

    def __missing__(self, name: str) -> Any:
        row = named(name)
        if row is None or not row.neutral:
            raise KeyError(name)
        word = row.neutral[0]
        return None if word == "none" else loose(word)


@functools.cache
def table() -> Mapping[str, Foreign]:
    """All rows by name, in the order of the file."""
    return {row.name: row for row in _rows(FILE.read_text(encoding="utf-8"))}


def _rows(text: str) -> Iterator[Foreign]:
    topic = ""
    reason = ""
    for line in text.splitlines():
        if line.startswith("## "):
            topic, _, reason = line.removeprefix("## ").partition(": ")
        elif line and not line.startswith("#"):
            kind, name, takes, *rest = [cell.strip() for cell in line.split("|")]
            neutral, own = (*rest, "", "")[:2]
            name, *shorts = name.split(" -")
            yield Foreign(
                name,
                tuple(shorts),
                cast(Kind, kind),
                cast(Takes, takes),
                tuple(neutral.split()),
                own or reason,
                topic,
            )


def _is_same(value: Any, word: str) -> bool:
    """Whether a value as it was written means what the table writes as `word`."""
    text = str(value).strip()
    if word in ("true", "false"):
        return text.lower() in (TRUE if word == "true" else FALSE)
    if text == (word if word != '""' else ""):
        return True
    try:
        return not isinstance(value, bool) and float(text) == float(word)
    except ValueError:
        return False


def _known_key(row: Foreign, key: str) -> str:
    """A hint at the key nearest to `key`, as a further sentence."""
    keys = [other.name.removeprefix(row.name + ".") for other in keys_of(row.name)]
    hint = nearest(key.replace("-", "_"), keys)
    return f".{hint}" if hint else ""
