"""The interval of a slowdown holds on a machine that is never quiet, and no unchanged engine is accused."""

import random
from itertools import product

from core_commands.doctor.pace import LOOKS, compare, interval, slowest
from tests.doctor.stand_in import Machine


def test_the_interval_has_the_median_as_often_as_it_says() -> None:
    draw = random.Random(1)
    missed = 0
    for number in LOOKS:
        for _ in range(1000):
            _, low, high = interval([draw.gauss(0, 1) * draw.choice((1, 5)) for _ in range(number)])
            missed += not low <= 0.0 <= high
    assert missed <= 12  # at most 4 are expected; more than 12 have a chance of one in 3,000


def test_the_interval_ends_where_all_patterns_of_signs_say_so() -> None:
    """Oracle: the signed-rank test by counting all 4,096 patterns; a shift inside is not rejected, one outside is."""
    draw = random.Random(2)
    values = [draw.gauss(0.1, 1) for _ in range(12)]
    sums = sorted(sum(rank for rank, sign in enumerate(signs, 1) if sign) for signs in product((0, 1), repeat=12))

    def chance(shift: float) -> float:
        ordered = sorted((value - shift for value in values), key=abs)
        positive = sum(rank for rank, value in enumerate(ordered, 1) if value > 0)
        least = min(positive, 78 - positive)
        return 2 * sum(each <= least for each in sums) / 4096

    _, low, high = interval(values)
    for edge, outward in ((low, -1e-9), (high, 1e-9)):
        assert chance(edge + outward) <= 0.001 < chance(edge - outward)


def test_a_fifth_slower_is_seen_through_drift_stalls_and_noise() -> None:
    for seed in range(50):
        machine = Machine(1, slow=lambda in_force: 0.2 * len(in_force), noise=0.1, seed=seed)
        slower, base = machine.start([]), machine.start([])
        slower._factor, base._factor = 1.2, 1.0
        found = slowest(compare(slower.round, base.round))
        assert found is not None and found.low <= 0.2 <= found.high


def test_equal_engines_are_never_slower() -> None:
    for seed in range(200):
        machine = Machine(1, noise=0.15, seed=seed)
        assert slowest(compare(machine.start([]).round, machine.start([]).round)) is None
