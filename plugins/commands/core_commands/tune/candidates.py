"""The values to try: which of the table may help here, and why the others are left out before anything is measured.

Owns: `Candidate`, `Dropped`, and what the memory plan says of them. Never does: start a server. Called by: `core tune`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from core.api.errors import ConfigError, CoreError, UserError, nearest
from core.args.arg import Given
from core_config.arguments.tunes import TUNABLES, Situation, Tunable

if TYPE_CHECKING:
    from core_config.resolve import Resolution

ORIGIN = "core tune"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One value of one argument.

    why: why it may help. nearer: the value between this one and the present one, if there is one.
    changes_bits: whether answers have other bits with it. is_step: see `Tunable`.
    """

    name: str
    value: Any
    why: str
    nearer: Any = None
    changes_bits: bool = False
    is_step: bool = False

    @property
    def text(self) -> str:
        """Return the argument and its value as people read them."""
        return f"{self.name}: {shown(self.value)}"


@dataclass(frozen=True, slots=True)
class Dropped:
    """A value, or a whole argument, that is not tried, and the reason."""

    text: str
    reason: str


@dataclass
class Choice:
    """What is tried and what is not."""

    candidates: list[Candidate] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)

    def drop(self, text: str, reason: str) -> None:
        """Leave something out."""
        self.dropped.append(Dropped(text, reason))


def shown(value: Any) -> str:
    """Return a value as it stands in a configuration file, on one line."""
    import yaml

    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=1 << 20)
    line = text.removesuffix("...\n").strip()
    return (
        msgspec.json.encode(value).decode() if "\n" in line else line
    )  # JSON is YAML too, and has escapes for line ends


def rows_of(only: Sequence[str] | None) -> list[Tunable]:
    """Return the rows of the table that are asked for. Raises UserError for a name that has none."""
    if only is None:
        return list(TUNABLES)
    known = {row.name: row for row in TUNABLES}
    found: list[Tunable] = []
    for word in only:
        name = word.lstrip("-").replace("-", "_")
        if name not in known:
            raise UserError(f"--only {word}: not among the arguments that are tried.{nearest(name, known)}")
        found.append(known[name])
    return found


Resolve = Callable[[Mapping[str, Any]], "Resolution"]
"""Resolves the user's arguments with further ones. Raises ConfigError."""


def choose(
    rows: Sequence[Tunable], situation: Situation, base: Resolution, again: Resolve, room: Callable[[Resolution], str]
) -> Choice:
    """Return the values to try, in the order of the table, those that change bits last.

    base: the resolved configuration without a trial. room: why a configuration does not fit in memory, or nothing.
    """
    choice = Choice()
    wanted = {"throughput", *situation.goals, *(["itl"] if "tpot" in situation.goals else [])}
    if "e2el" in situation.goals:
        wanted |= {"ttft", "itl"}
    for row in rows:
        if row.name in base.given:
            choice.drop(row.name, "it was given, so it stays as it is")
            continue
        reason = row.needs(situation)
        if not reason and not wanted & set(row.helps):
            reason = f"it may help {', '.join(row.helps)}, which no goal asks for"
        if reason:
            choice.drop(row.name, reason)
            continue
        values = row.values_in(situation)
        if not values:
            choice.drop(row.name, "it has no other value to try here")
        for value in values:
            _consider(row, value, situation, base, again, room, choice)
    choice.candidates.sort(key=lambda candidate: candidate.changes_bits)
    return choice


def _consider(
    row: Tunable,
    value: Any,
    situation: Situation,
    base: Resolution,
    again: Resolve,
    room: Callable[[Resolution], str],
    choice: Choice,
) -> None:
    """Add one value to the choice, or the reason why it is not tried."""
    text = f"{row.name}: {shown(value)}"
    reason = row.useless(situation, value)
    if reason:
        choice.drop(text, reason)
        return
    try:
        found = again({row.name: Given(value, ORIGIN)})
    except ConfigError as error:
        choice.drop(text, error.problems[0].rstrip("."))
        return
    except CoreError as error:
        choice.drop(text, str(error).rstrip("."))
        return
    if found.engine == base.engine and found.server == base.server:
        reason = "it changes nothing with this model"
    elif found.memory.tokens < situation.prompt_tokens + situation.answer_tokens:
        reason = f"the KV cache then has room for {found.memory.tokens:,} tokens of one request, fewer than the load's longest"
    else:
        reason = room(found)
    if reason:
        choice.drop(text, reason)
        return
    others = row.changes_weights or found.numerics is None or found.numerics != base.numerics
    nearer = nearer_value(
        value, situation.present[row.name], [each.value for each in choice.candidates if each.name == row.name]
    )
    choice.candidates.append(Candidate(row.name, value, row.why, nearer, others, row.is_step))


def nearer_value(value: Any, present: Any, tried: Sequence[Any]) -> Any:
    """Return the number between `value` and `present` that is tried before it, the closest to `value`; None without one."""
    if not _is_number(value) or not _is_number(present):
        return None
    between = [each for each in tried if _is_number(each) and min(value, present) < each < max(value, present)]
    return min(between, key=lambda each: abs(each - value), default=None)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
