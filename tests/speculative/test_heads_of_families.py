"""Heads of families with layouts of their own, in the engine: the model's bits in every way, and the drafts of plain torch."""

from pathlib import Path
from typing import Any

import pytest

from core import LLM, SamplingParams
from core_runtime.executor.drafts.passes import DraftPass
from tests.kv.conversations import other_weights
from tests.speculative.heads_of_families import HEADS, drafting_model
from tests.speculative.matrix import ASKED, PROMPTS, WAYS, Matrix
from tests.speculative.test_draft_model import noted

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
GIVEN: dict[str, Any] = {"max_model_len": 128, "max_num_seqs": 8, "use_tqdm_on_load": False, "dtype": "float32"}


@pytest.fixture(scope="module")
def matrix() -> Matrix:
    return Matrix()


@pytest.mark.parametrize("name", HEADS)
def test_the_engine_drafts_what_plain_torch_drafts(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind chunks of prompts, and behind tokens of which some were drafts."""
    proposer, drafts_of = drafting_model(name, tmp_path)
    seen = noted(monkeypatch, DraftPass)
    drafting = {"speculative_config": proposer.config(adaptive=False), "max_num_batched_tokens": 24}
    with LLM(model=str(proposer.target), enable_prefix_caching=False, **GIVEN, **drafting) as llm:
        llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert len(seen) > 10
    for tokens, drafts in seen:
        assert drafts == drafts_of(tokens, len(drafts))


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", HEADS)
def test_drafts_change_no_bit(matrix: Matrix, name: str, way: str, tmp_path: Path) -> None:
    """Requests with a grammar among others, preempted, behind a cached prefix, and so on."""
    proposer, _ = drafting_model(name, tmp_path)
    assert matrix.compare(proposer, way).spec_num_draft_tokens > 0


def answers(llm: LLM) -> list[list[int]]:
    """Tokens of all choices."""
    return [
        list(choice.token_ids) for output in llm.generate(PROMPTS, ASKED, use_tqdm=False) for choice in output.outputs
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
def test_drafts_go_on_after_sleep_and_with_new_weights(name: str, tmp_path: Path) -> None:
    proposer, _ = drafting_model(name, tmp_path)
    newer = other_weights(proposer.target, tmp_path / "newer")
    expected = []
    for path in (proposer.target, newer):
        with LLM(model=str(path), **GIVEN) as llm:
            expected.append(answers(llm))
    drafting = {"speculative_config": proposer.config(adaptive=False), "enable_sleep_mode": True}
    with LLM(model=str(proposer.target), **GIVEN, **drafting) as llm:
        assert answers(llm) == expected[0]
        for level in (1, 2):
            llm.sleep(level)
            llm.wake_up()
            assert answers(llm) == expected[0]
        drafted = llm.stats().spec_num_draft_tokens
        llm.update_weights(path=str(newer))
        assert answers(llm) == expected[1]
        assert llm.stats().spec_num_draft_tokens > drafted > 0
