"""Pictures of GGUF models with projector files in combination: bits are those of requests alone, tokens transformers'."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core import LLM, SamplingParams
from tests.apis.test_real_server import Server, client_of, serving
from tests.media.checkpoints import picture
from tests.media.comparison import Answer, Reference, assert_same, crowded, ours, prompt_of
from tests.media.projector_files import write_pair
from tests.media.test_projectors import MARKS, saved
from tests.media.test_server import ask, goes_on_after_a_death, shown, text

pytestmark = pytest.mark.media

NGRAM = {"method": "ngram", "num_speculative_tokens": 3}
SMALL: dict[str, Any] = {"dtype": "float32", "max_model_len": 320, "block_size": 16, "seed": 0}
FILLER = "x" * 20
"""Repeated text, from which n-grams are drafted, and more than a block of it."""


@pytest.fixture(scope="module", params=sorted(MARKS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def checkpoint(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(kind, tmp_path_factory.mktemp(kind) / "hf")


@pytest.fixture(scope="module")
def model(kind: str, checkpoint: Path) -> Path:
    """The text model's file, beside which the projector lies."""
    return write_pair(checkpoint, checkpoint.parent / "gguf", kind)[0]


def prompts(kind: str) -> list[dict[str, Any]]:
    mark = MARKS[kind]
    words = f"{FILLER}{mark}c{mark}{FILLER}"
    images = [[picture(index, 40, 60), picture(index + 1, 50, 40)] for index in range(3)]
    return [*(prompt_of(words, each) for each in images), {"prompt": "abc"}]


@pytest.fixture(scope="module")
def expected(model: Path, kind: str) -> list[Answer]:
    """Answers of requests that are alone and cached nowhere."""
    with LLM(model=str(model), enable_prefix_caching=False, **SMALL) as llm:
        answers = [ours(llm, [prompt])[0] for prompt in prompts(kind)]
    assert len({str(answer) for answer in answers}) == len(answers)
    return answers


def test_answers_alone_are_those_of_transformers(
    model: Path, checkpoint: Path, kind: str, expected: list[Answer]
) -> None:
    with LLM(model=str(model), **SMALL) as llm:
        reference = Reference(llm, checkpoint)
    for found, prompt in zip(expected, prompts(kind), strict=True):
        data: dict[str, Any] = prompt.get("multi_modal_data", {})
        assert_same(found, reference.answer(prompt["prompt"], data.get("image", [])))


def test_company_chunks_preemptions_and_hits_change_no_bit(model: Path, kind: str, expected: list[Answer]) -> None:
    with LLM(model=str(model), **{**SMALL, **crowded(expected)}) as llm:
        for _ in range(2):  # the second time with cached prefixes
            assert ours(llm, prompts(kind)) == expected
        stats = llm.stats()
        assert stats.num_preemptions
        assert stats.prefix_hits


@pytest.mark.parametrize(
    "more",
    [
        {"speculative_config": NGRAM},
        {"tensor_parallel_size": 2},
        {"tensor_parallel_size": 2, "speculative_config": NGRAM, "max_num_batched_tokens": 29, "max_num_seqs": 4},
    ],
    ids=["drafts", "two ranks", "ranks, drafts and chunks"],
)
def test_drafts_and_ranks_change_no_bit(model: Path, kind: str, expected: list[Answer], more: dict[str, Any]) -> None:
    with LLM(model=str(model), **SMALL, **more) as llm:
        for _ in range(2):
            assert ours(llm, prompts(kind)) == expected


@pytest.mark.parametrize("level", [1, 2])
def test_sleep_changes_no_bit(model: Path, kind: str, expected: list[Answer], level: int) -> None:
    with LLM(model=str(model), enable_sleep_mode=True, **SMALL) as llm:
        assert ours(llm, prompts(kind)[:1]) == expected[:1]
        llm.sleep(level)
        llm.wake_up()
        assert ours(llm, prompts(kind)) == expected


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "log"
    with serving(log, str(model), "--dtype", "float32", "--seed", "0") as running:
        yield running


def test_openais_own_call_shows_a_picture(server: Server, model: Path) -> None:
    parts = [text("a <image> b"), shown(1), text("c"), shown(2)]
    options = {"logprobs": True, "top_logprobs": 3}
    answer = ask(client_of(server), *parts, **options).choices[0]
    other = ask(client_of(server), text("a <image> b"), shown(2), text("c"), shown(1), **options).choices[0]
    assert other.logprobs != answer.logprobs
    with LLM(model=str(model), dtype="float32", max_model_len=512, seed=0) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=3)
        [alone] = llm.chat([{"role": "user", "content": parts}], params, use_tqdm=False)
    assert answer.token_ids == list(alone.outputs[0].token_ids)
    places = alone.outputs[0].logprobs or []
    mine = [place[token].logprob for place, token in zip(places, answer.token_ids, strict=True)]
    assert [each.logprob for each in answer.logprobs.content] == mine


def test_a_stream_goes_on_after_the_death_of_the_engine(server: Server) -> None:
    goes_on_after_a_death(server, client_of(server))
