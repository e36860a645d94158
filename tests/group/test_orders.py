"""Which requests change engines so that all have as many, whichever fronts have sent them."""

import random
from collections import Counter

import pytest

from core_frontend.group.orders import evened


@pytest.mark.parametrize("seed", range(20))
def test_all_engines_have_as_many_and_no_front_moves_what_it_has_not(seed: int) -> None:
    drawn = random.Random(seed)
    engines = range(drawn.randrange(1, 5))
    counts = {
        front: {engine: drawn.choice([0, 0, 1, 7, 40]) for engine in engines} for front in range(drawn.randrange(1, 4))
    }
    after = Counter({engine: sum(own[engine] for own in counts.values()) for engine in engines})
    before = Counter(after)
    for front, moves in evened(counts).items():
        left = Counter(counts[front])
        for source, target in moves:
            left[source] -= 1
            after[source] -= 1
            after[target] += 1
        assert min(left.values()) >= 0
    assert max(after.values()) - min(after.values()) <= 1
    # No engine both gives and gets: each move brings two numbers closer to one another.
    assert sum(abs(after[engine] - before[engine]) for engine in engines) == 2 * sum(map(len, evened(counts).values()))


def test_engines_that_take_no_requests_of_some_front_are_left_alone() -> None:
    assert evened({0: {0: 5, 1: 0, 2: 0}, 1: {0: 1, 2: 0}}) == {0: [(0, 2)] * 3, 1: []}
    assert evened({0: {0: 5}, 1: {1: 5}}) == {0: [], 1: []}
    assert evened({}) == {} and evened({3: {}}) == {3: []}
