"""The metrics of a server with several models.

Owns: those about the models, and the joining of what their servers measure. Never does: measure a request. Called by:
`core_commands.several.application`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from core_commands.several.keeper import Keeper
from core_observers.metrics import PREFIX

STATES = ("absent", "starting", "waking", "awake", "closing", "falling asleep", "asleep")


def joined(texts: Iterable[str]) -> str:
    """Join several texts in the format of Prometheus: what belongs to one metric stands together, described once."""
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for text in texts:
        name = ""
        for line in text.splitlines():
            if line.startswith(("# HELP ", "# TYPE ")):
                name = line.split(" ", 3)[2]
                lines = heads.setdefault(name, [])
                if not any(line.split(" ", 2)[1] == other.split(" ", 2)[1] for other in lines):
                    lines.append(line)
                samples.setdefault(name, [])
            elif line and not line.startswith("#"):
                samples.setdefault(name, []).append(line)
    lines = [line for name in samples for line in (*heads.get(name, ()), *samples[name])]
    return "\n".join(lines) + "\n" if lines else ""


def own_figures(keeper: Keeper) -> str:
    """Return the metrics about the models."""
    return "\n".join(_lines(keeper)) + "\n"


def _lines(keeper: Keeper) -> Iterator[str]:
    turns = keeper.turns
    yield from _head("model_state", "gauge", "1 for the state that a model is in.")
    for seat in turns.seats.values():
        for state in STATES:
            yield f'{PREFIX}model_state{{model_name="{_escaped(seat.name)}",state="{state}"}} {int(seat.state == state)}'
    for name, text in (
        ("model_bytes", "Bytes that a model takes now, as planned."),
        ("model_requests_running", "Requests that a model computes."),
        ("model_requests_waiting", "Requests that wait for a model."),
    ):
        yield from _head(name, "gauge", text)
        for seat in turns.seats.values():
            value = {
                "model_bytes": seat.bytes,
                "model_requests_running": seat.running,
                "model_requests_waiting": len(seat.waiting),
            }[name]
            yield f'{PREFIX}{name}{{model_name="{_escaped(seat.name)}"}} {value}'
    yield from _head("model_budget_bytes", "gauge", "Bytes that all models may take together.")
    yield f"{PREFIX}model_budget_bytes {turns.budget}"
    yield from _head("model_changes_total", "counter", "Models that were started, woken, put to sleep, or failed.")
    for kind, count in keeper.changes.items():
        yield f'{PREFIX}model_changes_total{{kind="{kind}"}} {count}'


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP {PREFIX}{name} {text}"
    yield f"# TYPE {PREFIX}{name} {kind}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
