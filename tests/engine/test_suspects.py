"""Whom engines die of: the search among those that were being computed."""

import random

import pytest

from core_frontend.suspects import Suspects


def deaths_until_known(names: list[str], guilty: str, cause: str = "crash") -> int:
    """A request that kills whatever engine runs it. Those that run without it get on."""
    suspects = Suspects()
    num_deaths = 0
    safe: set[str] = set()
    while True:
        running = suspects.next_trial() or names
        if guilty not in running:
            safe.update(running)
            suspects.acquit()
            continue
        num_deaths += 1
        found = suspects.died(running, names, safe.__contains__, cause)
        safe.clear()
        if found is not None:
            assert found.name == guilty
            assert 2 <= found.num_deaths <= num_deaths
            return num_deaths


@pytest.mark.parametrize(("count", "most"), [(1, 2), (2, 4), (8, 6), (64, 9)])
def test_the_guilty_one_is_found_by_halves(count: int, most: int) -> None:
    names = [f"r{index}" for index in range(count)]
    assert max(deaths_until_known(names, guilty) for guilty in names) <= most
    assert deaths_until_known(names, "r0", "killed") >= 5


def test_who_gets_on_in_between_is_innocent() -> None:
    suspects = Suspects()
    source = random.Random(3)
    for _ in range(200):
        computed = source.sample("abcdefgh", 3)
        assert suspects.died(computed, "abcdefgh", lambda name: True, "crash") is None
        assert suspects.next_trial() == []


def test_who_was_computed_beside_another_client_s_request_is_never_proved_guilty() -> None:
    suspects = Suspects()
    for _ in range(20):
        assert suspects.died(["a", "handle 7"], ["a"], lambda name: False, "crash") is None


def test_between_steps_nobody_is_suspected() -> None:
    suspects = Suspects()
    for _ in range(20):
        assert suspects.died([], ["a"], lambda name: False, "crash") is None
        assert suspects.next_trial() == []


def test_a_death_alone_is_suspicious_unless_it_came_from_outside() -> None:
    for cause, trial in [("crash", ["a"]), ("killed", [])]:
        suspects = Suspects()
        assert suspects.died(["a"], ["a", "b"], lambda name: False, cause) is None
        assert suspects.next_trial() == trial


def test_a_death_that_one_request_explains_explains_nothing_about_another() -> None:
    """Two that kill, always beside each other until they are tried."""
    suspects = Suspects()
    both = ["a", "b"]
    explained = 0
    num_deaths = 0
    live = list(both)
    while live:
        num_deaths += 1
        found = suspects.died(suspects.next_trial() or live, live, lambda name: False, "crash")
        if found is not None:
            live.remove(found.name)
            explained += found.num_deaths
    assert explained <= num_deaths
