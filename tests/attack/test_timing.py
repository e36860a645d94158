"""The timing attack's figure against its definition."""

import random

import pytest

from tests.attack.timing import area


@pytest.mark.parametrize("shift", [0, 3])
def test_the_area_is_the_share_of_pairs_in_order(shift: int) -> None:
    draw = random.Random(2)
    hits = [draw.randrange(10) for _ in range(30)]
    misses = [draw.randrange(10) + shift for _ in range(40)]
    in_order = sum((miss > hit) + 0.5 * (miss == hit) for hit in hits for miss in misses)
    assert area(hits, misses) == pytest.approx(in_order / 1200)


def test_extremes() -> None:
    assert area([1.0, 2.0], [3.0, 4.0]) == 1.0
    assert area([1.0, 1.0], [1.0]) == 0.5
    with pytest.raises(ValueError, match="not enough"):
        area([], [1.0])
