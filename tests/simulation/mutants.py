"""Faults that were mended, put back one by one: `python -m tests.simulation.mutants`.

Owns: `MUTANTS`, each a fix taken out, and the command that prints which known schedule notices and after how many seeds.
Never does: change a file. Called by: whoever wants to know whether the simulation still sees what it is there for.
"""

import sys
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import msgspec

from core_apis.processes.supervised_engine import SupervisedEngine
from core_supervision import weight_updates
from core_supervision.engine_state import EngineState
from core_supervision.lifecycle import Lifecycle
from core_supervision.link.zmq_client import ZmqClient
from core_supervision.watch import wedge
from tests.simulation.events import from_text
from tests.simulation.generator import schedule_of
from tests.simulation.play import Play, simulation
from tests.simulation.reloader import SimReloader
from tests.simulation.run import first_violation
from tests.simulation.test_known import KNOWN

MOST_SEEDS = 2000
FIRST_SEED = 100_000

after_death = EngineState.after_death
settle = SimReloader.settle


def _waits_outlive(state: EngineState, weights: Any) -> EngineState:
    after = after_death(state, weights)
    return msgspec.structs.replace(after, holders=tuple(holder for holder in state.holders if holder.reason != "sleep"))


def _gathering_forgotten(state: EngineState, weights: Any) -> EngineState:
    return msgspec.structs.replace(after_death(state, weights), gathering=None)


def _tensors_dropped_early(reloader: SimReloader, staged: Any) -> None:
    settle(reloader, ())


def _number_alone(engine: SupervisedEngine, epoch: int, client: int) -> None:
    if engine._client is not None:
        engine._client.declare_gone(client)


MUTANTS: tuple[tuple[str, Any, str, Any], ...] = (
    ("a long call counts as a hang", wedge, "LONG", frozenset()),
    ("waiting calls outlive the engine", EngineState, "after_death", _waits_outlive),
    ("an update in parts is forgotten by a death", EngineState, "after_death", _gathering_forgotten),
    ("a sleep is forgotten by a death", EngineState, "sleeper", property(lambda state: None)),
    ("the cache stays when weights change", weight_updates, "drop_cache", lambda core, config=None: None),
    ("tensors that the next engine needs go early", SimReloader, "settle", _tensors_dropped_early),
    ("tensors of a dead engine stay", SimReloader, "settle", lambda reloader, staged: None),
    ("a step in flight hangs in a long call", wedge, "_is_held", lambda last, utility: False),
    ("calls of a client that is gone hold on", Lifecycle, "client_gone", lambda lifecycle, client: None),
    ("waiting calls that end hold on", EngineState, "let_go", lambda state, client, call=None: state),
    ("a hang of an engine of others is not noticed", ZmqClient, "ping", lambda client: None),
    ("a client number counts in every engine", SupervisedEngine, "declare_gone", _number_alone),
)


def main() -> int:
    """Entry point. Returns 1 when a mutant lives."""
    num_living = 0
    for name, owner, attribute, value in MUTANTS:
        with ExitStack() as stack:
            play = stack.enter_context(simulation())
            stack.enter_context(patch.object(owner, attribute, value))
            found = _noticed(play)
        num_living += not found
        print(f"{name}: {found or 'NOT NOTICED'}", flush=True)
    return 1 if num_living else 0


def _noticed(play: Play) -> str:
    """Say which known schedule and how many random ones show a fault; empty: none does."""
    found: list[str] = []
    for path in KNOWN:
        kind = first_violation(play, from_text(path.read_text()))
        if kind:
            found.append(f"{kind} in {path.stem}")
            break
    for count in range(MOST_SEEDS):
        kind = first_violation(play, schedule_of(FIRST_SEED + count))
        if kind and kind != "starved":
            found.append(f"{kind} after {count + 1} seeds")
            break
    return ", ".join(found)


if __name__ == "__main__":
    sys.exit(main())
