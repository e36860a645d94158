"""Tiers that keep only blocks which several requests had, or which were part of a prompt."""

import pytest

from core_kv_connectors.tiers.filtered import FilteredTiers
from tests.kv.tier_fakes import FIRST, OTHER, PAGE_BYTES, PRINT, Engine, config_of

ANSWER = list(range(900, 908))
LONGER = [*OTHER, *range(300, 312)]
"""A prompt that evicts the first one with its answer."""


class Written(Engine):
    """An engine after each of whose runs the disk has what it was given."""

    def __init__(self, tiers, num_blocks):
        super().__init__(tiers, num_blocks)
        self._disk = tiers.disk

    def run(self, *arguments, **options):
        found = super().run(*arguments, **options)
        assert self._disk is None or self._disk.flush()
        return found


@pytest.fixture(params=["host", "disk"])
def open_tiers(request, tmp_path):
    """A function that opens tiers in host memory or on a disk."""
    opened = []
    place = {"host_bytes": 1 << 20} if request.param == "host" else {"disk_path": str(tmp_path), "disk_bytes": 1 << 20}

    def make(store_threshold=0, prompt_only=False):
        options = {"store_threshold": store_threshold, "prompt_only": prompt_only}
        opened.append(FilteredTiers(config_of(tmp_path, **place), lambda: PRINT, PAGE_BYTES, **options))
        return opened[-1]

    yield make
    for tiers in opened:
        tiers.close()


def test_blocks_are_kept_once_two_requests_had_them(open_tiers):
    engine = Written(open_tiers(store_threshold=2), num_blocks=10)
    for tokens in (FIRST, OTHER, FIRST, OTHER):
        assert engine.run(tokens) == 0
    assert engine.run(FIRST) == 32


def test_a_request_that_finds_a_block_in_the_cache_counts_too(open_tiers):
    engine = Written(open_tiers(store_threshold=2), num_blocks=10)
    assert [engine.run(tokens) for tokens in (FIRST, FIRST, OTHER, FIRST)] == [0, 32, 0, 32]


def test_answers_are_kept_once_they_are_part_of_a_prompt(open_tiers):
    engine = Written(open_tiers(prompt_only=True), num_blocks=12)
    engine.run(FIRST, answer=ANSWER)
    engine.run(LONGER[:44])
    turn = [*FIRST, *ANSWER, 1]
    assert engine.run(turn) == 32, "the prompt alone"
    engine.run(LONGER[:44])
    assert engine.run(turn) == 40


def test_an_answer_that_the_next_prompt_finds_in_the_cache_is_kept(open_tiers):
    engine = Written(open_tiers(prompt_only=True), num_blocks=12)
    engine.run(FIRST, answer=ANSWER)
    turn = [*FIRST, *ANSWER, 1]
    assert engine.run(turn) == 40
    engine.run(LONGER[:44])
    assert engine.run(turn) == 40


@pytest.mark.parametrize("open_tiers", ["disk"], indirect=True)
@pytest.mark.parametrize("options", [{"store_threshold": 2}, {"prompt_only": True}])
def test_a_disk_is_filled_with_the_same_blocks_alone(open_tiers, options):
    tiers = open_tiers(**options)
    engine = Written(tiers, num_blocks=40)

    def saved():
        tiers.save_all(engine.kv, engine.device.copy, 60.0)
        assert tiers.disk.flush()
        return len(list(tiers.disk.directory.glob("*.kv")))

    engine.run(FIRST, answer=ANSWER)
    assert saved() == (0 if "store_threshold" in options else 8)
    engine.run([*FIRST, *ANSWER, 1])
    assert saved() == 10
    tiers.remember(engine.kv)
    assert saved() == 10
