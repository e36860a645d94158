"""A fixed number of random schedules, and what the simulation promises of itself: it repeats, and it sees what is wrong."""

from collections.abc import Iterator
from unittest.mock import patch

import pytest

from core.engine.sequences import Sequences
from tests.simulation.events import Ask, Kill, Schedule, Settings, Update, from_text, to_text
from tests.simulation.executor import SimExecutor
from tests.simulation.generator import schedule_of
from tests.simulation.play import Play, simulation
from tests.simulation.run import first_violation
from tests.simulation.shrink import shrink

SEEDS = 240
GROUPS = 4


@pytest.fixture(scope="module")
def play() -> Iterator[Play]:
    with simulation() as function:
        yield function


@pytest.mark.parametrize("group", range(GROUPS))
def test_no_schedule_violates_an_invariant(group: int, play: Play) -> None:
    for seed in range(group, SEEDS, GROUPS):
        outcome = play(schedule_of(seed))
        sentences = "\n".join(map(str, outcome.violations))
        assert not outcome.violations, f"{sentences}\npython -m tests.simulation.run --seed {seed}"


def test_a_seed_gives_the_same_run_again(play: Play) -> None:
    for seed in range(20):
        schedule = schedule_of(seed)
        assert from_text(to_text(schedule)) == schedule
        assert play(schedule) == play(schedule)


KEPT = Schedule(
    seed=3,
    settings=Settings(),
    events=(
        Ask(max_tokens=9),
        Kill(at=0.3),
        Ask(at=0.5, length=14),
        Ask(at=0.6, family=1),
        Update(at=0.9),
        Ask(at=1.4, length=14, max_tokens=9),
    ),
)


def test_a_cache_that_outlives_its_weights_is_seen_and_the_schedule_shrunk(play: Play) -> None:
    assert not play(KEPT).violations
    with patch.object(Sequences, "start_over", lambda sequences: None):
        assert first_violation(play, KEPT) == "cache"
        short = shrink(KEPT, lambda schedule: first_violation(play, schedule))
        kinds = [type(event).__name__ for event in short.events]
        assert kinds == ["Ask", "Update", "Ask"]


def test_a_wrong_token_is_seen(play: Play) -> None:
    compute = SimExecutor._sample

    def wrong(executor, row, tokens, drafts, digests):
        new = compute(executor, row, tokens, drafts, digests)
        if len(row.tokens) == 20:
            new[-1] = row.tokens[-1] = new[-1] + 1
        return new

    with patch.object(SimExecutor, "_sample", wrong):
        assert first_violation(play, KEPT) == "token"
