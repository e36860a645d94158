"""Foreign names: arguments of other engines and of older versions that this engine does not take.

Owns: the rows of the table `foreign.txt`, the values of them that have no effect (and are accepted), and the sentences about
all other values. Never does: declare an argument (the group files do). Called by: parser, sources and convert when no
declaration fits, and by help, document and the plugin framework. The table is read on first use.
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
LAST_RELEASE = "0.3"
"""Last release that accepts the names of kind `older`."""
UNSAID = frozenset({"none", '""', "{}", "[]"})  # Neutral words that no error message proposes.


@dataclass(frozen=True, slots=True)
class Foreign:
    """One row of the table.

    name:    `tensor_parallel_size`; for a key its path, `eplb_config.policy`; for a value `kv_cache_dtype=fp8_inc`.
    shorts:  short names, which are written with one dash; without the dash here.
    kind:    why the name is not served, see the table's first lines.
    takes:   form of its value.
    neutral: values without an effect, as they are written.
    text:    reason why it is not served; for `elsewhere` (and `older`, when it starts with `--`) what to write instead;
             for an older value what it means here, a colon, and why.
    topic:   capability that it belongs to, such as `LoRA adapters`.
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
        """The flag on the command line, such as `--eplb-config.policy`."""
        return self.name if self.name.startswith("_") else flag_of(self.name)  # A keyword of Python only has no flag.

    @property
    def field(self) -> Field:
        """A declaration by which the parser can find the end of the value; the value is kept as written."""
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
        """The sentence for the user, without the leading name and the final full stop."""
        if self.kind == "elsewhere":
            return f"there is no such argument here; use {self.text}"
        if self.kind == "removed":
            return f"removed, as {self.text}; leave it out"
        if self.kind == "older" and not self.name.isidentifier():
            meaning, _, why = self.text.partition(": ")
            return f"deprecated, last accepted by release {LAST_RELEASE}; use {meaning}, which it means here, as {why}"
        if self.kind == "older":
            way_out = f"use {self.text}" if self.text.startswith("--") else f"{self.text}; leave it out"
            return f"deprecated, last accepted by release {LAST_RELEASE}; {way_out}"
        words = [word for word in self.neutral if word not in UNSAID]
        way_out = f"use {' or '.join(words)}" if len(words) > 1 else "leave it out"
        return f"this engine does not serve it yet: {self.text}; {way_out}"

    def is_neutral(self, value: Any) -> bool:
        """Whether `value`, as a user wrote it, has no effect."""
        if value is None or value in ([], (), {}):
            return bool(self.neutral)
        if isinstance(value, (list, tuple)):
            value = " ".join(map(str, value))
        return any(_is_same(value, word) for word in self.neutral)


Refusal = tuple[str, Any, str]
"""(name or path, requested value, reason of the refusal)."""


def refusals(row: Foreign, value: Any) -> list[Refusal]:
    """Return a refusal for every part of `value` that has an effect; a mapping is checked key by key."""
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
    """Return the row called `name`, with dashes or underscores; None for others, and for keys and single values."""
    row = table().get(name.replace("-", "_"))
    if row is None or not row.name.isidentifier():
        return None
    return row


def with_short(name: str) -> Foreign | None:
    """Return the row with the short name `name` (without its dash)."""
    return next((row for row in table().values() if name in row.shorts), None)


def names() -> list[Foreign]:
    """Return all rows except those of keys and of single values."""
    return [row for row in table().values() if row.name.isidentifier()]


def keys_of(argument: str) -> list[Foreign]:
    """Return the rows of an argument's keys, nested ones included; declared keys have no rows."""
    prefix = argument + "."
    return [other for other in table().values() if other.name.startswith(prefix) and "=" not in other.name]


def refused_value(argument: str, value: Any) -> str:
    """Return why `value` is not a choice of a declared argument, to precede the choices in a message; empty when unknown."""
    row = table().get(f"{argument}={value}")
    return "" if row is None else f"this engine does not serve it yet: {row.text}; "


def older_value(argument: str, value: Any) -> tuple[str, str] | None:
    """Return what a value of other engines means here, and the sentence about it; None for a value that means nothing."""
    row = table().get(f"{argument}={value}")
    if row is None or row.kind != "older":
        return None
    return row.text.partition(": ")[0], row.sentence


class WithNeutral(dict[str, Any]):
    """Values of arguments by name, also readable under foreign names: these give the value that their absence means."""

    def __missing__(self, name: str) -> Any:
        row = named(name)
        if row is None or not row.neutral:
            raise KeyError(name)
        word = row.neutral[0]
        return None if word == "none" else loose(word)


@functools.cache
def table() -> Mapping[str, Foreign]:
    """Return all rows by name, in the order of the file, which is read once per process."""
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
    """Whether a value, as it was written, equals the value that the table writes as `word`."""
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
    """Return a hint at the key nearest to `key`, as a further sentence; empty without one."""
    keys = [other.name.removeprefix(row.name + ".") for other in keys_of(row.name)]
    hint = nearest(key.replace("-", "_"), keys)
    return f".{hint}" if hint else ""
