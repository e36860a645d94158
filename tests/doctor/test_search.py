"""Halving finds every planted set of culprits, and no innocent change."""

from hypothesis import given
from hypothesis import strategies as st

from core_commands.doctor.search import all_bad, smallest_bad


@given(st.integers(1, 40), st.data())
def test_culprits_that_are_bad_alone_or_only_together_are_found(number: int, data: st.DataObject) -> None:
    changes = list(range(number))
    sizes = st.lists(st.integers(1, 3), min_size=1, max_size=4)
    order = data.draw(st.permutations(changes))
    planted = []
    for size in data.draw(sizes):
        if len(order) >= size:
            planted.append(set(order[:size]))
            order = order[size:]
    if not planted:
        return

    def is_bad(in_force):
        return any(group <= set(in_force) for group in planted)

    found = all_bad(changes, is_bad)
    assert sorted(map(sorted, found)) == sorted(map(sorted, planted))


def test_one_culprit_of_many_costs_two_starts_for_each_halving() -> None:
    for guilty in range(64):
        tried = []

        def is_bad(in_force, guilty=guilty, tried=tried):
            tried.append(in_force)
            return guilty in in_force

        assert smallest_bad(list(range(64)), is_bad) == [guilty]
        assert len(tried) <= 12
