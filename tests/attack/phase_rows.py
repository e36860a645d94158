"""Every row of the corpus, one after the other, each on the kind of server that it wants."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from tests.attack.arena import Arena
from tests.attack.canary import canary
from tests.attack.corpus import THEMES
from tests.attack.results import Clock, Phase
from tests.attack.row import SETUPS, Row, problems
from tests.attack.send import Target, send
from tests.attack.server import HEALTH, Server

ROW_LIMIT_S = 15.0
HEALTH_LIMIT_S = 10.0
# Large ones come last: they may take all the time.
ORDER = [(is_large, setup) for is_large in (False, True) for setup in SETUPS]


def run(arena: Arena, phase: Phase, seconds: float) -> None:
    """Send the rows; what no time is left for is named in the notes."""
    clock = Clock(seconds)
    for large, setup in ORDER:
        if arena.given is not None and setup != "plain":
            continue
        rows = [
            (theme, row)
            for theme, of_theme in THEMES.items()
            for row in of_theme
            if (row.large, row.setup) == (large, setup)
        ]
        gives_text = "runner" not in SETUPS[setup]
        while rows and clock.left:
            with arena.target(**SETUPS[setup]) as (target, server), beside(phase, target, setup, large=large):
                sent = attack(arena, phase, target, server, rows, clock)
                if sent == len(rows) and gives_text:
                    arena.check_tokens(phase, target, f"after the rows on the server '{setup}'")
            rows = rows[sent:]
        phase.notes += [f"No time was left for: {row.name}" for _, row in rows]


def beside(phase: Phase, target: Target, setup: str, *, large: bool) -> AbstractContextManager[None]:
    """A canary, on the kind of server that most rows want."""
    if setup != "plain":
        return nullcontext()
    return canary(phase, target, f"the {'large' if large else 'small'} rows")


def attack(
    arena: Arena, phase: Phase, target: Target, server: Server | None, rows: Sequence[tuple[str, Row]], clock: Clock
) -> int:
    """Send rows until the time is over or the server is dead; returns how many were sent."""
    for number, (theme, row) in enumerate(rows, 1):
        answer = send(target, row, ROW_LIMIT_S)
        found = problems(row, answer)
        alive = send(target, HEALTH, HEALTH_LIMIT_S)
        if alive.status != 200:
            found.append(f"afterwards /health gave {alive.outcome}")
        value = f"{answer.outcome}, {answer.seconds:.2f} s"
        phase.check(row.name, not found, value, target_of(row), "; ".join(found), theme)
        arena.say("rows", f"{len(phase.checks)} sent, {len(phase.failed)} failed", often=True)
        dead = server is not None and server.process.poll() is not None
        if dead or not clock.left:
            return number
    return len(rows)


def target_of(row: Row) -> str:
    """What a row wants, in a few words."""
    statuses = "/".join("closed" if code == 0 else str(code) for code in sorted(row.allowed))
    return f"{statuses} within {row.seconds:g} s"
