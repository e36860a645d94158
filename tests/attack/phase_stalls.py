"""How long others wait: latencies of /health and gaps of a running stream beside a volley of hostile requests."""

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from tests.attack.arena import Arena
from tests.attack.corpus import ROWS
from tests.attack.probe import Measured, probing
from tests.attack.results import Clock, Phase
from tests.attack.row import Row
from tests.attack.send import Target, send

VOLLEY = 60
ALLOWED_S = 0.1
"""What a volley may add to the largest latency and gap of an undisturbed server."""
QUIET_SHARE = 0.25
REQUEST_LIMIT_S = 20.0


def run(arena: Arena, phase: Phase, seconds: float) -> None:
    """An undisturbed time, then a volley without a key and one with."""
    clock = Clock(seconds)
    with arena.target() as (target, server):
        with probing(target) as quiet:
            time.sleep(min(12.0, seconds * QUIET_SHARE))
        limits = {
            "/health": max(quiet.health, default=0.0) + ALLOWED_S,
            "the gap of a stream": max(quiet.gaps, default=0.0) + ALLOWED_S,
        }
        phase.check(
            "an undisturbed stream runs", len(quiet.gaps) > 10 and not quiet.failures, f"{len(quiet.gaps)} gaps"
        )
        note(phase, "undisturbed", quiet, limits)
        for number, (name, keyed) in enumerate((("without a key", False), ("with a key", True))):
            rows = [replace(row, keyed=row.keyed and keyed) for row in volley(arena)]
            with probing(target) as measured:
                time.sleep(0.5)
                unanswered = fire(target, rows, min(REQUEST_LIMIT_S, clock.left / (2 - number)))
                time.sleep(0.5)
            arena.say("stalls", f"{len(rows)} requests {name}, {unanswered} without an answer in time")
            for what, values in (("/health", measured.health), ("the gap of a stream", measured.gaps)):
                phase.at_most(
                    f"longest: {what}, beside {VOLLEY} requests {name}", max(values, default=99.0), limits[what]
                )
            phase.check(f"nothing fails beside {VOLLEY} requests {name}", not measured.failures, measured.failures, 0)
            note(phase, f"beside {VOLLEY} requests {name}", measured, limits)
        if server is not None:
            phase.check("the server lives", server.process.poll() is None, server.process.poll(), "running")
        arena.check_tokens(phase, target)


def volley(arena: Arena) -> Sequence[Row]:
    """Rows that a server should answer without work: as many large ones as others."""
    mine = [row for row in ROWS if row.setup == "plain" and not row.work]
    half = VOLLEY // 2
    large = arena.random.sample([row for row in mine if row.large], half)
    small = arena.random.sample([row for row in mine if not row.large], VOLLEY - half)
    chosen = [*large, *small]
    arena.random.shuffle(chosen)
    return chosen


def fire(target: Target, rows: Sequence[Row], limit_s: float) -> int:
    """Send all at once; returns how many got neither an answer nor a closed connection in time."""
    made = [row if not isinstance(body := row.make_body(), bytes) else replace(row, body=body) for row in rows]
    with ThreadPoolExecutor(len(made), initializer=yield_processor) as pool:
        answers = list(pool.map(lambda row: send(target, row, limit_s), made))
    return sum(answer.seconds >= limit_s for answer in answers)


def yield_processor() -> None:
    """Attackers have processors of their own; here their threads come last, so that what is measured is the server."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)


def note(phase: Phase, name: str, measured: Measured, limits: dict[str, float]) -> None:
    """Keep the numbers for the pictures."""
    for what, values in (("/health", measured.health), ("the gap of a stream", measured.gaps)):
        phase.series[f"{what}, {name}"] = values
        phase.limits[f"{what}, {name}"] = limits[what]
