"""Schedules of faults that were found once: each violated an invariant before its fault was mended."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulation.events import from_text, to_text
from tests.simulation.play import Play, simulation

KNOWN = sorted((Path(__file__).parent / "known").glob("*.json"))


@pytest.fixture(scope="module")
def play() -> Iterator[Play]:
    with simulation() as function:
        yield function


@pytest.mark.parametrize("path", KNOWN, ids=lambda path: path.stem)
def test_a_known_fault_stays_mended(path: Path, play: Play) -> None:
    schedule = from_text(path.read_text())
    outcome = play(schedule)
    assert not outcome.violations, "\n".join(map(str, outcome.violations)) + "\n" + to_text(schedule)
