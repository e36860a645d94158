"""Handoffs of KV pages while engines go and bytes change, for a few seconds: `make soak-kv` runs 10,000."""

from pathlib import Path

from tests.fuzz.threads import no_thread_dies
from tests.soak.handoffs import BAD, soak


def test_no_page_is_wrong_none_is_left_and_every_request_ends(tmp_path: Path) -> None:
    with no_thread_dies():
        tally = soak(tmp_path, 150, seed=38)
    assert all(tally[f"bad: {kind}"] for kind in BAD)
    assert tally["whole"] > 20 and tally["with failure"] and tally["harmed"] and tally["aborted"]
    assert tally["producers replaced"] and tally["consumers replaced"]
