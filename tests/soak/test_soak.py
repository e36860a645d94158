"""A short soak: most kinds of injury once, and no answer differs from that of a server that nobody disturbs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.run import soak

SECONDS, REST_S = 24.0, (0.3, 1.0)


@pytest.mark.xdist_group("soak")
def test_nothing_is_wrong_lost_or_leaked(tmp_path: Path) -> None:
    tally, _ = soak(tmp_path, SECONDS, seed=3, kill_servers=False, rest_s=REST_S)
    assert tally.wrong == [], tally.summary("wrong")
    assert tally.lost == [], tally.summary("lost")
    assert tally.leaked == [], tally.summary("leaked")
    happened = tally.right and tally.recovery  # how much depends on the machine
    assert happened, tally.summary("too little happened")
