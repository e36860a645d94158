"""What excuses a slow callback, and what does not."""

import io
from datetime import datetime
from pathlib import Path

import pytest

from tests.attack.arena import Arena
from tests.attack.metronome import Metronome
from tests.attack.results import Phase
from tests.attack.slow import SlowCallback, slow_callbacks

NOW = datetime(2026, 12, 1, 4, 0, 30)
LOG = """03:59:59.100 INFO server core_apis: Serving.
03:59:59.500 WARNING server core_apis: A callback took 38.0 ms of the event loop (41.0 by the clock), at most \
20 are allowed (--max-callback-ms): Task.go. (2 more like it in the last 60 s)
"""


def found(log: str = LOG) -> SlowCallback:
    (callback,) = slow_callbacks(log, NOW)
    return callback


def test_a_line_of_the_log_is_read() -> None:
    callback = found()
    assert callback.took == 0.038 and callback.text.endswith("in the last 60 s)")
    assert datetime.fromtimestamp(callback.end) == pytest.approx(datetime(2026, 12, 1, 3, 59, 59, 501000))
    assert callback.end - callback.begin == pytest.approx(0.043)
    yesterday = found(LOG.replace("03:59:59.5", "23:59:59.5"))
    assert datetime.fromtimestamp(yesterday.end).day == 30


def said(*stalls: tuple[int, float, float], unnamed: int = 0) -> tuple[bool, str]:
    """Whether the check of a phase holds, and its note. stalls: processor, seconds from the callback's begin on."""
    metronome, callback = Metronome(), found()
    for processor, begin, end in stalls:
        metronome.listen(processor, io.StringIO(f"{callback.begin + begin} {callback.begin + end}\n"))
    arena, phase = Arena(Path(), metronome=metronome), Phase("load", "")
    arena.slow_callbacks, arena.unnamed_callbacks = [callback], unnamed
    arena.check_callbacks(phase)
    return phase.checks[0].ok, phase.notes[0]


def test_time_in_which_the_machine_stood_still_is_no_callbacks() -> None:
    good, note = said((0, 0.005, 0.03))
    assert good and "Task.go." in note and "stalls: 13.0 ms" in note


@pytest.mark.parametrize(
    "stalls",
    [[], [(0, -1.0, 0.005)], [(0, 0.0, 0.01), (1, 0.0, 0.01)], [(0, 1.0, 2.0)]],
    ids=["none", "mostly before", "shared by two processors", "afterwards"],
)
def test_other_stalls_excuse_nothing(stalls: list[tuple[int, float, float]]) -> None:
    assert not said(*stalls)[0]


def test_a_callback_that_no_line_names_is_not_excused() -> None:
    assert not said((0, 0.0, 0.043), unnamed=1)[0]
