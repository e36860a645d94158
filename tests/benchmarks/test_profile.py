"""Stopwatches of the step profile: exclusive times that add up."""

import pytest

from benchmarks.profile import Stopwatches


class Clock:
    """Stands still unless told to go on."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def work(self, seconds):
        self.now += seconds


def test_nested_parts_are_not_counted_twice():
    clock = Clock()
    watches = Stopwatches(clock)
    inner = watches.watched(clock.work, "inner")

    def work():
        clock.work(1.0)
        inner(2.0)
        inner(3.0)
        clock.work(0.5)

    watches.watched(work, "outer")()
    assert watches.take() == {"inner": 5.0, "outer": 1.5}
    assert sum(watches.take().values()) == 0.0


def test_an_exception_passes_and_its_time_counts():
    clock = Clock()
    watches = Stopwatches(clock)

    def fail():
        clock.work(1.0)
        raise KeyError("x")

    with pytest.raises(KeyError):
        watches.watched(fail, "part")()
    assert watches.take() == {"part": 1.0}


def test_the_cost_of_stopwatches_is_taken_off():
    clock = Clock()
    watches = Stopwatches(clock)
    watches.inside, watches.outside = 0.25, 0.5
    inner = watches.watched(lambda: clock.work(1.0 + 0.25), "inner")

    def work():
        clock.work(4.0 + 0.25)  # with the outer stopwatch's own share
        for _ in range(3):
            inner()
            clock.work(0.5)  # what the inner stopwatch adds around its own measurement

    watches.watched(work, "outer")()
    assert watches.take() == {"inner": 3.0, "outer": 4.0}


def test_calibration_finds_a_cost_and_leaves_no_part_behind():
    watches = Stopwatches()
    watches.calibrate(calls=500)
    assert watches.inside >= 0 and watches.outside >= 0
    assert watches.inside + watches.outside > 0
    assert watches.take() == {}
