"""The table of the lifecycle: which events are allowed in which phase, and the phases that follow.

Owns: `TABLE` and its text for docs/failures.md. Never does: change a state. Called by: the state keeper, for every event.

A cell has the phases that may follow, or the sentence with which the event is refused. `{who}` in a sentence becomes the
holders of the halt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from core_supervision.engine_state import PHASES, Phase

EventName = Literal[
    "pause", "wait", "wait_idle", "drained", "resume", "let_go", "keep_pause", "begin_sleep", "slept", "begin_wake",
    "begin_update", "swapped", "changed", "begin_gathering", "end_gathering", "died",
]  # fmt: skip

Cell = tuple[Phase, ...] | str

HELD: Final = "Requests are held and cannot end: {who} End that first, or use mode `keep` or `abort` instead of `wait`."
BUSY: Final = "Memory or weights of the engine are being changed; ask again when that is done."
ENDED: Final = "The pause was ended before all requests had."
STILL_RUN: Final = "Requests still run; pause with mode `wait` and ask again when they have ended."
NO_CHANGE: Final = "Nothing is being changed."
NOBODY_WAITS: Final = "No call waits for requests to end."
AWAKE: Final = "No memory is missing; there is nothing to wake."


@dataclass(frozen=True, slots=True)
class Row:
    """One event, a row of the table.

    meaning:   text for the page.
    is_intent: whether the event is refused when the record cannot be written. Events that report a fact, or that end a hold,
               take effect anyway, and are recorded as soon as that is possible.
    cells:     cells by phase.
    """

    meaning: str
    is_intent: bool
    cells: Mapping[Phase, Cell]


def _row(
    meaning: str,
    running: Cell,
    draining: Cell,
    paused: Cell,
    asleep: Cell,
    changing: Cell = BUSY,
    *,
    intent: bool = False,
) -> Row:
    cells = dict(zip(PHASES, (running, draining, paused, asleep, changing), strict=True))
    return Row(meaning, intent, MappingProxyType(cells))


RUNNING: Final = ("running",)
DRAINING: Final = ("draining",)
PAUSED: Final = ("paused",)
ASLEEP: Final = ("asleep",)
CHANGING: Final = ("changing",)

TABLE: Final[Mapping[EventName, Row]] = MappingProxyType(
    {
        "pause": _row("`pause` with `keep` or `abort`", PAUSED, PAUSED, PAUSED, ASLEEP, intent=True),
        "wait": _row("a call with mode `wait`; requests run", DRAINING, DRAINING, HELD, HELD, intent=True),
        "wait_idle": _row("a call with mode `wait`; no request runs", PAUSED, PAUSED, PAUSED, ASLEEP, intent=True),
        "drained": _row("the last request that was waited for ends", NOBODY_WAITS, PAUSED, PAUSED, ASLEEP),
        "resume": _row("`resume`", RUNNING, RUNNING, RUNNING, ASLEEP),
        "let_go": _row(
            "a waiting call ends, or its client is gone",
            RUNNING,
            ("running", "draining"),
            ("running", "draining", "paused"),
            ASLEEP,
            CHANGING,
        ),
        "keep_pause": _row("`pause` with `wait` is done", ENDED, STILL_RUN, PAUSED, ASLEEP, intent=True),
        "begin_sleep": _row("`sleep` begins", CHANGING, CHANGING, CHANGING, CHANGING, intent=True),
        "slept": _row("memory was given back", NO_CHANGE, NO_CHANGE, NO_CHANGE, NO_CHANGE, ASLEEP),
        "begin_wake": _row("`wake_up` begins", AWAKE, AWAKE, AWAKE, CHANGING),
        "begin_update": _row("new weights are about to be used", CHANGING, CHANGING, CHANGING, CHANGING, intent=True),
        "swapped": _row("the models have new weights", NO_CHANGE, NO_CHANGE, NO_CHANGE, NO_CHANGE, CHANGING),
        "changed": _row(
            "a change ends, well or not; the cache has nothing of other weights",
            NO_CHANGE,
            NO_CHANGE,
            NO_CHANGE,
            NO_CHANGE,
            ("running", "draining", "paused", "asleep"),
        ),
        "begin_gathering": _row("`start_weight_update`", RUNNING, DRAINING, PAUSED, ASLEEP, intent=True),
        "end_gathering": _row("the parts were applied, or could not be", RUNNING, DRAINING, PAUSED, ASLEEP),
        "died": _row(
            "the engine dies and the next one begins",
            RUNNING,
            RUNNING,
            ("running", "paused"),
            ("running", "paused", "changing"),
            ("running", "paused", "changing"),
        ),
    }
)


def markdown() -> str:
    """Return the table for docs/failures.md: one row for each event, refusals as numbered notes below."""
    notes: list[str] = []
    lines = ["| Event | " + " | ".join(PHASES) + " |", "|---" * (len(PHASES) + 1) + "|"]
    for row in TABLE.values():
        cells = [_shown(row.cells[phase], notes) for phase in PHASES]
        lines.append(f"| {row.meaning} | " + " | ".join(cells) + " |")
    lines.append("")
    for number, sentence in enumerate(notes, start=1):
        lines.append(f"{number}. {sentence.replace('{who}', '(who holds them)')}")
    return "\n".join(lines) + "\n"


def _shown(cell: Cell, notes: list[str]) -> str:
    if not isinstance(cell, str):
        return " or ".join(cell)
    if cell not in notes:
        notes.append(cell)
    return f"refused ({notes.index(cell) + 1})"
