"""Trials on a simulated engine whose true effects are known: order, choice, time, failures."""

import math
import random

import pytest

from core.api.errors import CoreError, UserError
from core_commands.tune.candidates import Candidate, Dropped
from core_commands.tune.effects import QUANTILES, Effect, Pair
from core_commands.tune.report import verdict
from core_commands.tune.trials import Terms, TrialError, Trials
from tests.tune.simulated import SimulatedBench

TRUE = {("a", 1): 0.25, ("b", 1): 0.15, ("c", 1): 0.06, ("d", 1): 0.0, ("e", 1): -0.08, ("f", 1): -0.2}
MINUTES = 5


def candidates(effects):
    return [Candidate(name, value, "it may") for name, value in effects]


def trials(bench, given=None, minutes=MINUTES, **terms):
    terms = Terms(60 * minutes, math.log(1.01), **terms)
    return Trials(bench, candidates(bench.effects) if given is None else given, terms)


def test_the_order_is_right_in_95_of_100_runs_and_what_helps_is_chosen():
    right = chosen = within = 0
    for seed in range(100):
        bench = SimulatedBench(TRUE, seed)
        found = trials(bench).run()
        right += [row.candidate.name for row in found.ranking()] == ["a", "b", "c", "d", "e", "f"]
        chosen += {row.candidate.name for row in found.chosen} == {"a", "b", "c"}
        within += bench.time <= 60 * MINUTES + 10
        assert not bench.opened_now and len(bench.opened_ever) == 2 + len(TRUE)
    assert right >= 95, (right, chosen)
    assert chosen >= 90, (right, chosen)
    assert within == 100


def test_where_nothing_helps_nothing_is_chosen():
    none = {(name, 1): 0.0 for name in "abcdef"}
    wrong, intervals = 0, []
    for seed in range(60):
        found = trials(SimulatedBench(none, seed)).run()
        wrong += bool(found.chosen)
        intervals += [row.effect.low <= 0 <= row.effect.high for row in found.tried]
    assert wrong <= 2  # a value must seem to help twice, with other pairs
    assert sum(intervals) / len(intervals) >= 0.9
    quiet = trials(SimulatedBench(none, 3)).run()
    assert verdict(quiet, 1.0).startswith("No value helps: none above ")


def test_a_drift_at_an_even_rate_favours_neither():
    bench = SimulatedBench({("a", 1): 0.0})
    bench.random.gauss = lambda mean, deviation: 0.0
    bench._wander = lambda seconds: setattr(bench, "speed", math.exp(-bench.time / 100))
    found = trials(bench).run()
    assert abs(found.tried[0].effect.mean) < 1e-9
    order = [(bool(values), seed) for values, seed in bench.measured[-4:]]
    assert [trial for trial, _ in order] == [False, True, True, False]
    assert order[0][1] == order[1][1] != order[2][1] == order[3][1]  # the prompts of a pair are the same


def test_values_that_hurt_together_are_not_chosen_together():
    class Clashing(SimulatedBench):
        def opened(self, values):
            self.effects[("b", 1)] = -0.3 if "a" in values else 0.2
            return super().opened(values)

    found = trials(Clashing({("a", 1): 0.3, ("b", 1): 0.2}, 1)).run()
    assert [row.candidate.name for row in found.chosen] == ["a"]
    assert "less than the best of them alone" in found.note


def test_a_server_that_does_not_start_leaves_the_others():
    bench = SimulatedBench(TRUE, broken=[("a", 1)])
    found = trials(bench).run()
    assert [(each.text, each.reason) for each in found.dropped] == [
        ("a: 1", "the server does not start: its process ended with exit code 1: no memory")
    ]
    assert {row.candidate.name for row in found.chosen} == {"b", "c"}


def test_a_present_server_that_fails_is_not_blamed_on_a_value():
    bench = SimulatedBench(TRUE)
    measure = []

    @staticmethod
    def fail(subject):
        measure.append(subject)
        if len(measure) > 6 and not subject.values:
            raise TrialError("Connection refused")

    original = SimulatedBench.opened

    def opened(values):
        context = original(bench, values)
        subject = context.__enter__()
        before = subject.measure
        subject.measure = lambda seed: (fail(subject), before(seed))[1]
        closing = type(
            "Context", (), {"__enter__": lambda self: subject, "__exit__": lambda self, *why: context.__exit__(*why)}
        )
        return closing()

    bench.opened = opened
    with pytest.raises(CoreError, match="The server without a trial: Connection refused"):
        trials(bench).run()
    assert not bench.opened_now


def test_a_further_step_in_a_direction_that_was_worse_is_not_tried():
    given = [Candidate("a", 2, "", nearer=None), Candidate("a", 4, "", nearer=2), Candidate("a", 8, "", nearer=4)]
    bench = SimulatedBench({("a", 2): -0.2, ("a", 4): -0.3, ("a", 8): 0.1})
    found = trials(bench, given).run()
    assert [each.text for each in found.dropped] == ["a: 4"]
    assert "a smaller step in the same direction, a: 2, was worse" in found.dropped[0].reason
    assert {row.candidate.value for row in found.tried} == {2, 8}  # 8 is behind 4, of which nothing is known


def test_time_goes_to_whole_values_and_the_others_are_named():
    bench = SimulatedBench(TRUE)
    found = trials(bench, minutes=1.2).run()
    assert found.tried and found.untried
    assert [row.candidate.name for row in found.tried] + [each.name for each in found.untried] == list("abcdef")
    assert all(row.effect.num_pairs + row.effect.num_left_out >= 4 for row in found.tried)
    with pytest.raises(
        UserError, match=r"--minutes 0.1: a start takes 4 s .* no time to try one value and confirm it; give at"
    ):
        trials(SimulatedBench(TRUE), minutes=0.1).run()


def test_values_too_slow_for_the_goal_are_left_out_unmeasured():
    bench = SimulatedBench(TRUE, slow=[Dropped("a: 1", "too long")])
    found = trials(bench).run()
    assert Dropped("a: 1", "too long") in found.dropped
    assert ("a",) not in {values for values, _ in bench.measured}


@pytest.mark.parametrize("allowed", [False, True])
def test_other_bits_are_apart_and_chosen_only_where_they_are_allowed(allowed):
    given = [Candidate("bits", 1, "", changes_bits=True), Candidate("a", 1, "")]
    bench = SimulatedBench({("bits", 1): 0.4, ("a", 1): 0.3})
    found = trials(bench, given, allow_other_bits=allowed).run()
    assert [row.difference for row in found.ranking(changes_bits=True)] == ["3 of 16 answers differ"]
    assert [row.candidate.name for row in found.ranking()] == ["a"]
    assert {row.candidate.name for row in found.chosen} == ({"a", "bits"} if allowed else {"a"})


def students_share(quantile, freedom, steps=2_000):
    """The share of Student's distribution below a quantile, by Simpson's rule over its density."""
    scale = math.gamma((freedom + 1) / 2) / math.sqrt(freedom * math.pi) / math.gamma(freedom / 2)
    width = quantile / steps
    density = [scale * (1 + (place * width) ** 2 / freedom) ** (-(freedom + 1) / 2) for place in range(steps + 1)]
    return 0.5 + width / 3 * (density[0] + 4 * sum(density[1:-1:2]) + 2 * sum(density[2:-1:2]) + density[-1])


def test_intervals_are_students():
    shares = [students_share(quantile, freedom) for freedom, quantile in enumerate(QUANTILES, 1)]
    assert shares == pytest.approx([0.975] * len(QUANTILES), abs=3e-5)
    draw = random.Random(0)
    inside = 0
    for _ in range(2000):
        effect = Effect.of([Pair(1.0, math.exp(draw.gauss(0.05, 0.03))) for _ in range(4)])
        inside += effect.low <= 100 * (math.exp(0.05) - 1) <= effect.high
    assert 0.935 <= inside / 2000 <= 0.965


def test_pairs_between_which_the_machine_changed_do_not_count():
    pairs = [Pair(1, 1.1, (10, 10, 10)), Pair(1, 1.2, (10, 10.5, 10)), Pair(1, 2.0, (10, 5, 10))]
    effect = Effect.of(pairs)
    assert effect.num_pairs == 2 and effect.num_left_out == 1 and effect.percent < 20
    assert Effect.of([Pair(1, 2, (10, 5))] * 3 + pairs[:1]).num_pairs == 4  # mostly unsteady: all count
    assert math.isinf(Effect.of(pairs[:1]).half) and "no interval" in Effect.of(pairs[:1]).text()
