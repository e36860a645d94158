"""Pictures together with ranks, groups, drafts, adapters and sleep: the same tokens."""

from pathlib import Path
from typing import Any

import pytest

from core import LLM
from tests.media.checkpoints import picture
from tests.media.comparison import ours, prompt_of

NGRAM = {"method": "ngram", "num_speculative_tokens": 3}
SMALL = {"dtype": "float32", "max_model_len": 256, "block_size": 16, "seed": 0}


def prompts() -> list[Any]:
    pictured = [prompt_of("ab<image>c<image>de", [picture(index), picture(index + 1)]) for index in range(3)]
    return [*pictured, {"prompt": "abc"}]


@pytest.fixture(scope="module")
def expected(llava: Path) -> list[list[int]]:
    with LLM(model=str(llava), **SMALL) as llm:
        return [answer.token_ids for answer in ours(llm, prompts())]


@pytest.mark.parametrize(
    "more",
    [
        {"tensor_parallel_size": 2, "speculative_config": NGRAM},
        pytest.param({"data_parallel_size": 2}, marks=pytest.mark.media),
        pytest.param(
            {"enable_lora": True, "kv_offloading_size": 0.01, "num_gpu_blocks_override": 20}, marks=pytest.mark.media
        ),
    ],
    ids=["ranks and drafts", "a group", "adapters and host memory"],
)
def test_the_tokens_are_the_same(llava: Path, expected: list[list[int]], more: dict[str, Any]) -> None:
    with LLM(model=str(llava), **SMALL, **more) as llm:
        for _ in range(2):  # the second time with cached prefixes
            assert [answer.token_ids for answer in ours(llm, prompts())] == expected


def test_sleep_changes_no_answer_to_a_picture(llava: Path, expected: list[list[int]]) -> None:
    with LLM(model=str(llava), enable_sleep_mode=True, **SMALL) as llm:
        for level in (1, 2):
            llm.sleep(level)
            llm.wake_up()
            assert [answer.token_ids for answer in ours(llm, prompts())] == expected
