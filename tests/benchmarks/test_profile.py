"""Stopwatches of the step profile: exclusive times that add up."""

import time

import pytest

from benchmarks.profile import Stopwatches


def spin(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def test_nested_parts_are_not_counted_twice():
    watches = Stopwatches()
    inner = watches.watched(lambda: spin(0.02), "inner")

    def work():
        spin(0.01)
        inner()
        inner()

    start = time.perf_counter()
    watches.watched(work, "outer")()
    whole = time.perf_counter() - start
    taken = watches.take()
    assert taken["inner"] >= 0.04 and taken["outer"] >= 0.01
    assert sum(taken.values()) == pytest.approx(whole, rel=0.02, abs=1e-3)
    assert sum(watches.take().values()) == 0.0


def test_an_exception_passes_and_its_time_counts():
    watches = Stopwatches()

    def fail():
        spin(0.01)
        raise KeyError("x")

    with pytest.raises(KeyError):
        watches.watched(fail, "part")()
    assert watches.take()["part"] >= 0.01


def test_the_cost_of_stopwatches_is_taken_off():
    watches = Stopwatches()
    watches.calibrate(calls=2000)
    inner = watches.watched(lambda: None, "inner")

    def many():
        for _ in range(5000):
            inner()

    bare = Stopwatches()
    bare_inner = bare.watched(lambda: None, "inner")

    def many_bare():
        for _ in range(5000):
            bare_inner()

    corrected, raw = [], []
    for _ in range(5):
        watches.watched(many, "outer")()
        bare.watched(many_bare, "outer")()
        corrected.append(sum(watches.take().values()))
        raw.append(sum(bare.take().values()))
    assert min(corrected) < 0.6 * min(raw)
