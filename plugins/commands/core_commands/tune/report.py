"""The outcome of trials as text, as JSON, and as a configuration file with a reason on each line.

Owns: their forms. Never does: measure or choose. Called by: `core tune`.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from math import isinf
from typing import Any, Final

import msgspec

from core.args.schema import flag_of, schema
from core_commands.tune.candidates import shown
from core_commands.tune.effects import Effect
from core_commands.tune.trials import Findings, Tried

LONGEST_REASON: Final = 400


def as_text(found: Findings, least: float) -> str:
    """Return the report for people. least: percent below which an effect is not worth an argument."""
    lines = ["", "Effect on the score, with the value against without it:"]
    ranking = found.ranking()
    lines += [f"  {row.candidate.text}: {row.effect.text()}" for row in ranking] or ["  nothing was measured"]
    others = found.ranking(changes_bits=True)
    if others:
        lines += ["", "With these, answers have other bits:"]
        lines += [f"  {row.candidate.text}: {row.effect.text()}; {row.difference}" for row in others]
    if found.dropped:
        lines += ["", "Not tried:"]
        lines += [f"  {dropped.text}: {_one_line(dropped.reason)}" for dropped in found.dropped]
    if found.untried:
        lines += [
            "",
            "No time for: " + ", ".join(candidate.text for candidate in found.untried) + "; give more --minutes.",
        ]
    return "\n".join([*lines, "", verdict(found, least), bandwidth(found)])


def verdict(found: Findings, least: float) -> str:
    """Return what came of the trials in a sentence."""
    if found.chosen and found.together is not None:
        names = " and ".join(f"{flag_of(row.candidate.name)} {shown(row.candidate.value)}" for row in found.chosen)
        note = f" ({found.note})" if found.note else ""
        return f"{names}: {found.together.text()}, with new pairs{note}."
    if found.note:
        return f"Nothing is chosen: {found.note}."
    rows = found.tried
    if not rows:
        return "Nothing was tried, so nothing is chosen."
    most = max(row.effect.high for row in rows)
    if isinf(most):
        return "Nothing is chosen: some values have one pair only, which shows nothing; give more --minutes."
    return f"No value helps: none above {max(most, least):.1f}%."


def bandwidth(found: Findings) -> str:
    """Return how fast memory was meanwhile."""
    speeds = sorted(found.bandwidths)
    if not speeds:
        return "The memory's bandwidth was not measured."
    middle = statistics.median(speeds)
    left_out = sum(row.effect.num_left_out for row in found.tried)
    note = f"; {left_out} pairs were left out, since it changed by more than a quarter" if left_out else ""
    return (
        f"Memory meanwhile: {middle:.1f} GB/s, from {speeds[0]:.1f} to {speeds[-1]:.1f}{note}. {found.seconds:.0f} s."
    )


def as_yaml(head: Sequence[str], values: Mapping[str, Any], found: Findings) -> str:
    """Return a file for --config: the user's values, then what helps, each with its reason.

    head: comments at its top.
    """
    lines = [f"# {_one_line(text)}" for text in head]
    fields = schema().fields
    for name, value in values.items():
        if fields[name].arg.secret:
            lines.append(f"# {name}: given, but secret; give it again")
        else:
            lines.append(f"{_line(name, value)}  # given")
    for row in found.chosen:
        reason = f"{row.effect.text()}, since {row.candidate.why}"
        if row.candidate.changes_bits:
            reason += f"; other bits: {row.difference}"
        lines.append(f"{_line(row.candidate.name, row.candidate.value)}  # {_one_line(reason)}")
    if not values and not found.chosen:
        lines.append("{}")
    return "\n".join(lines) + "\n"


def as_json(found: Findings, head: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything as plain values."""

    def effect(each: Effect | None) -> dict[str, Any] | None:
        if each is None:
            return None
        ends = {"low": each.low, "high": each.high} if each.num_pairs > 1 else {"low": None, "high": None}
        return {"percent": each.percent, **ends, "pairs": each.num_pairs, "left_out": each.num_left_out}

    def rows(tried: Sequence[Tried]) -> list[dict[str, Any]]:
        return [
            {"argument": row.candidate.name, "value": row.candidate.value, "effect": effect(row.effect)}
            | ({"difference": row.difference} if row.candidate.changes_bits else {})
            for row in tried
        ]

    return {
        **head,
        "effects": rows(found.ranking()),
        "other_bits": rows(found.ranking(changes_bits=True)),
        "dropped": [{"what": dropped.text, "reason": dropped.reason} for dropped in found.dropped],
        "untried": [candidate.text for candidate in found.untried],
        "chosen": {row.candidate.name: row.candidate.value for row in found.chosen},
        "together": effect(found.together),
        "note": found.note,
        "bandwidth_gb_s": found.bandwidths,
        "seconds": found.seconds,
    }


def _line(name: str, value: Any) -> str:
    return f"{name}: {shown(msgspec.to_builtins(value))}"


def _one_line(text: str) -> str:
    return " ".join(text.split())[:LONGEST_REASON]
