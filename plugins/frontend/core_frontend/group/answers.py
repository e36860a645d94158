"""One answer made of those of several engines.

Owns: `combined`. Never does: call. Called by: the calls of a group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

HOLDS = ("ended", "drains", "reached")
"""States of a hold; of several, the first of these counts."""


def combined(method: str, answers: Sequence[Any]) -> Any:
    """Return the answer of the group. answers: of its engines; None for one that is being started again."""
    told = [answer for answer in answers if answer is not None]
    match method:
        case "written_profile":
            return ", ".join(told) if len(told) == len(answers) else None
        case "list_adapters":
            return _adapters(told)
        case "prefix_places":
            return {
                "places": dict(sum((Counter(answer["places"]) for answer in told), Counter())),
                "pinned": sum(answer["pinned"] for answer in told),
            }
        case "num_pins":
            return [sum(counts) for counts in zip(*told, strict=True)]
        case "reset_prefix_cache":
            return all(told)
    if told and isinstance(told[0], dict) and "holders" in told[0]:
        return _states(told)
    return told[0] if told else None


def _states(told: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the state of an engine that stands for all: halted when all are, with what any of them lacks."""
    unusual = next((state for state in told if state["state"] != "running"), told[0])
    whole = {
        **unusual,
        "is_halted": all(state["is_halted"] for state in told),
        "is_paused": any(state["is_paused"] for state in told),
        "is_sleeping": any(state["is_sleeping"] for state in told),
        "missing": sorted({name for state in told for name in state["missing"]}),
    }
    if "hold" in told[0]:
        whole["hold"] = min((state["hold"] for state in told), key=HOLDS.index)
    return whole


def _adapters(told: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the adapters that all engines know."""
    known = [{row["name"]: row for row in answer["adapters"]} for answer in told]
    rows = []
    for name, row in known[0].items():
        if all(name in names for names in known):
            others = [names[name] for names in known]
            rows.append({**row, "num_requests": sum(other["num_requests"] for other in others)})
    return {**told[0], "adapters": rows, "number": sum(answer["number"] for answer in told)}
