"""Arrival times and goodput."""

import itertools
import statistics

import pytest

from benchmarks.peer.arrivals import arrival_times, goodput, is_good
from benchmarks.streaming import Stream


def stream(ttft, gap, tokens=5):
    return Stream([ttft + gap * number for number in range(tokens)], tokens)


def test_arrivals_are_the_same_for_every_engine_and_differ_by_seed_and_rate():
    assert arrival_times(4.0, 32, seed=1) == arrival_times(4.0, 32, seed=1)
    assert arrival_times(4.0, 32, seed=1) != arrival_times(4.0, 32, seed=2)
    assert arrival_times(4.0, 32, seed=1)[1] * 4 != pytest.approx(arrival_times(8.0, 32, seed=1)[1] * 8)


def test_gaps_are_exponential_with_the_mean_of_the_rate():
    times = arrival_times(5.0, 20_000, seed=3)
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert times[0] == 0.0 and min(gaps) >= 0
    assert statistics.fmean(gaps) == pytest.approx(0.2, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(0.2, rel=0.05)  # of an exponential: its mean
    assert sum(gap > 0.2 for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.02)  # 1 / e


@pytest.mark.parametrize(
    ("ttft", "gap", "good"), [(0.5, 0.03, True), (0.51, 0.01, False), (0.1, 0.031, False), (0.1, 0.0, True)]
)
def test_a_request_is_good_within_both_limits(ttft, gap, good):
    assert is_good(stream(ttft, gap)) is good


def test_tokens_that_share_a_chunk_count_for_the_mean_gap():
    # two chunks 0.2 s apart that carry eleven tokens: 20 ms a token
    assert is_good(Stream([0.1, 0.3], tokens=11))


def test_a_single_token_has_no_gap():
    assert is_good(stream(0.4, 0.0, tokens=1))


def test_goodput_is_the_good_share_of_the_offered_rate():
    served = [stream(0.1, 0.01), stream(0.1, 0.01), stream(0.1, 0.01), stream(2.0, 0.01)]
    assert goodput(served, offered=8.0).share == 0.75
    assert goodput(served, offered=8.0).rate == 6.0
    assert goodput([], offered=8.0).rate == 0.0
