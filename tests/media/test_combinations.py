"""Pictures in company, in chunks, preempted, cached, and with ranks, groups, drafts, adapters, sleep: the same bits."""

from pathlib import Path
from typing import Any

import pytest

from core import LLM
from core_media.families import FAMILIES
from tests.media.checkpoints import SAVE, picture
from tests.media.comparison import Answer, ours, prompt_of

pytestmark = pytest.mark.media

NGRAM = {"method": "ngram", "num_speculative_tokens": 3}
SMALL = {"dtype": "float32", "max_model_len": 256, "block_size": 16, "seed": 0}
OF_MEDIA = pytest.mark.media
KINDS = ["llava", *(pytest.param(kind, marks=OF_MEDIA) for kind in ("gemma3", "paligemma", "qwen2_5_vl", "qwen3_vl"))]
"""A family of each way in which rows of pictures come into a model."""

WHOLE = ("paligemma",)
"""Families of which one step computes a whole prompt."""


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def checkpoint(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return SAVE[kind](tmp_path_factory.mktemp(kind))


def prompts(kind: str) -> list[Any]:
    mark = FAMILIES[kind]
    filler = "x" * (4 if kind in WHOLE else 40)
    text = f"{filler}{mark}c{mark}{filler}"
    pictured = [prompt_of(text, [picture(index), picture(index + 1)]) for index in range(3)]
    return [*pictured, {"prompt": "abc"}]


@pytest.fixture(scope="module")
def expected(checkpoint: Path, kind: str) -> list[Answer]:
    """Answers of requests that are alone."""
    with LLM(model=str(checkpoint), enable_prefix_caching=False, **SMALL) as llm:
        answers = [ours(llm, [prompt])[0] for prompt in prompts(kind)]
    assert len({str(answer) for answer in answers}) == len(answers)
    return answers


def test_company_chunks_preemptions_and_caches_change_no_bit(
    checkpoint: Path, kind: str, expected: list[Answer]
) -> None:
    blocks = 11 if kind in WHOLE else 17
    small = {"num_gpu_blocks_override": blocks, "max_num_batched_tokens": 29, "max_num_seqs": 4}
    with LLM(model=str(checkpoint), **small, **{**SMALL, "max_model_len": 160}) as llm:
        for _ in range(2):  # the second time with cached prefixes
            assert ours(llm, prompts(kind)) == expected
        assert llm.stats().num_preemptions


@pytest.mark.parametrize(
    "more",
    [
        {"tensor_parallel_size": 2, "speculative_config": NGRAM},
        pytest.param({"data_parallel_size": 2}, marks=OF_MEDIA),
        pytest.param(
            {"enable_lora": True, "kv_offloading_size": 0.01, "num_gpu_blocks_override": 36, "max_model_len": 160},
            marks=OF_MEDIA,
        ),
    ],
    ids=["ranks and drafts", "a group", "adapters and host memory"],
)
def test_the_tokens_are_the_same(checkpoint: Path, kind: str, expected: list[Answer], more: dict[str, Any]) -> None:
    with LLM(model=str(checkpoint), **{**SMALL, **more}) as llm:
        for _ in range(2):
            assert ours(llm, prompts(kind)) == expected


def test_sleep_changes_no_answer_to_a_picture(checkpoint: Path, kind: str, expected: list[Answer]) -> None:
    with LLM(model=str(checkpoint), enable_sleep_mode=True, **SMALL) as llm:
        for level in (1, 2):
            llm.sleep(level)
            llm.wake_up()
            assert ours(llm, prompts(kind)) == expected
