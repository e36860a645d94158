"""A short soak: most kinds of injury once, and no answer differs from that of a server that nobody disturbs."""

from pathlib import Path

import pytest

from tests.soak.cases import cases, without_adapters
from tests.soak.run import Extent, of_moves, of_ranks, soak
from tests.soak.tally import Tally

REST_S = (0.3, 1.0)


def check(tally: Tally, least: int) -> None:
    assert tally.wrong == [], tally.summary("wrong")
    assert tally.lost == [], tally.summary("lost")
    assert tally.leaked == [], tally.summary("leaked")
    assert tally.halted == [], tally.summary("halted")
    assert tally.right >= least and tally.recovery, tally.summary("too little happened")


@pytest.mark.slow
def test_nothing_is_wrong_lost_or_leaked(tmp_path: Path) -> None:
    some = cases()[::3]
    first_kills = 90  # the seed by which the engine is killed before anything else happens
    tally, _ = soak(tmp_path, Extent(5.0, least=6), seed=first_kills, asked=some, kill_servers=False, rest_s=REST_S)
    check(tally, 6)


@pytest.mark.slow
def test_the_same_with_more_injuries_and_all_kinds_of_requests(tmp_path: Path) -> None:
    tally, _ = soak(tmp_path, Extent(24.0, least=21), seed=3, kill_servers=False, rest_s=REST_S)
    check(tally, 21)


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "stages"), [(2, 1), (1, 2)])
def test_the_same_while_ranks_are_killed(ranks: int, stages: int, tmp_path: Path) -> None:
    some = without_adapters(cases())[::3]
    tally, _ = soak(
        tmp_path, Extent(20.0, least=6), 4, some, of_ranks(ranks, stages), kill_servers=False, rest_s=REST_S
    )
    check(tally, 6)
    assert tally.injuries["kill a rank"], tally.summary("no rank was killed")


@pytest.mark.slow
def test_the_same_while_engines_are_drained(tmp_path: Path) -> None:
    some = cases()[::3]
    tally, _ = soak(tmp_path, Extent(20.0, least=6), 5, some, of_moves(2), kill_servers=False, rest_s=REST_S)
    check(tally, 6)
    assert tally.operated["drain an engine"], tally.summary("no engine was drained")
