"""Some pairs of the matrix of drafts; `make test-drafts` has all of them."""

from pathlib import Path

import pytest

from tests.kv.conversations import MORE_STREAMS, checkpoint
from tests.speculative.matrix import WAYS, Matrix, Proposer, proposers

PAIRS = [("eagle3", "planned ahead"), ("draft_model, a tree", "preempted"), ("suffix", "cached prefix")]


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Proposer]:
    return {proposer.name: proposer for proposer in proposers(tmp_path_factory.mktemp("drafts"))}


@pytest.fixture(scope="module")
def matrix() -> Matrix:
    return Matrix()


@pytest.mark.parametrize(("name", "way"), PAIRS)
def test_drafts_change_no_bit(every: dict[str, Proposer], matrix: Matrix, name: str, way: str) -> None:
    stats = matrix.compare(every[name], way)
    assert stats.spec_num_accepted_tokens > 0


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", MORE_STREAMS)
def test_drafts_change_no_bit_of_other_families(matrix: Matrix, family: str, way: str, tmp_path: Path) -> None:
    keys = (("prompt_lookup_min", 1), ("prompt_lookup_max", 3))
    stats = matrix.compare(Proposer(family, "ngram", checkpoint(family, tmp_path / "model"), keys=keys), way)
    assert stats.spec_num_accepted_tokens > 0


def test_a_draft_that_fails_is_done_without(
    every: dict[str, Proposer], matrix: Matrix, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from core_runtime.executor.drafts.passes import DraftPass

    def broken(*_: object) -> None:
        raise RuntimeError("no such weights")

    monkeypatch.setattr(DraftPass, "_compute", broken)
    stats = matrix.compare(every["eagle"], "in company")
    assert stats.spec_off == "Drafting failed: no such weights. There are no drafts until the engine starts anew."
    assert stats.spec_off in caplog.text
