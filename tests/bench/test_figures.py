"""Figures against hand-made times, and against the standard library's statistics."""

import itertools
import math
import random
import statistics

import pytest

from core.api.errors import UserError
from core_commands.bench.arrivals import Rates, arrival_times
from core_commands.bench.figures import figures, good_share, most_at_once, parse_limits, parse_percentiles, times_of
from core_commands.bench.load import Outcome
from core_commands.bench.report import serving_table


def outcome(sent, *arrivals, tokens=None, prompt=10, error=""):
    times = [sent + at for at in arrivals]
    ended = times[-1] if times else sent
    has_usage = tokens is not None
    return Outcome(sent, 0.0, times, ended, prompt, tokens or len(times), has_usage, bool(times), "", error)


def test_times_are_those_of_their_definitions():
    times = times_of([outcome(5.0, 0.5, 0.6, 0.9, tokens=5), outcome(7.0, 0.25), outcome(1.0, error="no")])
    assert times.ttft == pytest.approx([500, 250])
    assert times.itl == pytest.approx([100, 300])
    assert times.tpot == pytest.approx([400 / 4])  # by tokens, not by parts: a part may hold several
    assert times.e2el == pytest.approx([900, 250])


def test_rates_count_what_went_well():
    rows = [outcome(0.0, 1.0, 2.0, prompt=7), outcome(0.5, 1.0, prompt=5), outcome(0.0, error="refused")]
    found = figures(rows, 4.0, {"ttft": 1000.0, "e2el": 1500.0}, ["ttft"], [50.0])
    assert (found["completed"], found["failed"]) == (2, 1)
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (12, 3)
    assert found["request_throughput"] == 0.5
    assert found["output_throughput"] == 0.75
    assert found["total_token_throughput"] == 3.75
    assert found["request_goodput"] == 0.25  # the first takes 2 s
    assert found["max_concurrent_requests"] == 2
    assert "mean_itl_ms" not in found


def test_a_reader_is_told_where_parts_stand_for_tokens():
    rows = [outcome(0.0, 1.0, 2.0, tokens=8), outcome(0.0, 1.0)]
    found = figures(rows, 1.0, {}, ["ttft"], [])
    assert (found["total_output_tokens"], found["completed_without_usage"]) == (9, 1)
    assert "Answers without usage: 1." in serving_table(found)
    assert "Answers without usage" not in serving_table(figures(rows[:1], 1.0, {}, ["ttft"], []))


def test_summaries_are_those_of_the_standard_library():
    draw = random.Random(3)
    rows = [outcome(0.0, draw.random(), 1 + draw.random()) for _ in range(101)]
    found = figures(rows, 1.0, {}, ["ttft"], [25.0, 75.0, 99.0])
    values = times_of(rows).ttft
    assert found["mean_ttft_ms"] == pytest.approx(statistics.fmean(values))
    assert found["median_ttft_ms"] == pytest.approx(statistics.median(values))
    assert found["std_ttft_ms"] == pytest.approx(statistics.pstdev(values))
    quarter, _, three = statistics.quantiles(values, n=4, method="inclusive")
    assert found["p25_ttft_ms"] == pytest.approx(quarter)
    assert found["p75_ttft_ms"] == pytest.approx(three)
    assert found["request_goodput"] is None


def test_a_measurement_without_a_second_token_has_figures():
    found = figures([outcome(0.0, 1.0)], 1.0, {"tpot": 1.0}, ["tpot", "itl"], [99.0])
    assert (found["mean_tpot_ms"], found["p99_itl_ms"], found["request_goodput"]) == (0.0, 0.0, 1.0)


def test_a_limit_that_is_met_exactly_is_kept():
    rows = [outcome(0.0, 0.25, 0.5)]
    assert good_share(rows, {"ttft": 250.0, "tpot": 250.0, "e2el": 500.0}) == 1.0
    assert good_share(rows, {"ttft": 249.0}) == 0.0


def test_requests_that_follow_each_other_are_not_at_once():
    assert most_at_once([outcome(0.0, 1.0), outcome(1.0, 1.0)]) == 1
    assert most_at_once([outcome(0.0, 1.0), outcome(0.9, 1.0)]) == 2


@pytest.mark.parametrize("burstiness", [0.3, 1.0, 5.0])
def test_arrivals_have_the_rate_and_the_spread_that_was_asked_for(burstiness):
    rates = Rates(50.0, 50.0)
    times = arrival_times(20_000, rates, burstiness, seed=1)
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert times == arrival_times(20_000, rates, burstiness, seed=1) != arrival_times(20_000, rates, burstiness, seed=2)
    assert times[0] == 0.0 and min(gaps) >= 0.0
    assert statistics.fmean(gaps) == pytest.approx(1 / 50, rel=0.06)
    variation = statistics.pstdev(gaps) / statistics.fmean(gaps)
    assert variation == pytest.approx(1 / math.sqrt(burstiness), rel=0.06)  # 1 for Poisson
    assert arrival_times(3, Rates(math.inf, math.inf), burstiness, seed=1) == [0.0] * 3


@pytest.mark.parametrize("exponential, middle", [(False, 55.0), (True, math.sqrt(1000.0))])
def test_a_rate_rises_as_asked(exponential, middle):
    rates = Rates(10.0, 100.0, exponential)
    times = arrival_times(30_002, rates, 1.0, seed=1)
    gaps = [after - before for before, after in itertools.pairwise(times)]
    for begin, rate in ((0, 10.0), (14_000, middle), (29_000, 100.0)):
        found = 1 / statistics.fmean(gaps[begin : begin + 1000])
        assert found == pytest.approx(rate, rel=0.15)


@pytest.mark.parametrize("word", ["ttft", "ttft:", "ttft:x", "ttft:-1", "ttft:nan", "itl:5", "x:5"])
def test_wrong_limits_are_refused(word):
    with pytest.raises(UserError, match="expected METRIC:MS"):
        parse_limits([word])


def test_wrong_percentiles_are_refused():
    assert parse_percentiles(["50", "99.9"]) == [50.0, 99.9]
    for word in ("x", "101", "-1", "nan"):
        with pytest.raises(UserError, match="0 to 100"):
            parse_percentiles([word])
