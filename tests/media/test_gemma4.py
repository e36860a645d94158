"""Pictures of the large Gemma 4, whose rows see each other in layers with windows alone: transformers' answers, equal bits."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers.video_utils import default_sample_indices_fn

from core import LLM, SamplingParams
from core.api.errors import RequestError
from core_media.config import media_of
from core_media.processing.videos import chosen_frames
from core_runtime.models.families import decoder_spec
from tests.apis.test_real_server import client_of, serving
from tests.families.test_divided_and_refused import config_of
from tests.media.checkpoints import picture
from tests.media.comparison import Answer, Reference, assert_same, ours, prompt_of
from tests.media.omni import save_gemma4, save_large_gemma4
from tests.media.seen import frames
from tests.media.test_omni import WholeReference
from tests.media.test_omni import prompt_of as whole_prompt
from tests.media.test_server import goes_on_after_a_death

SETTINGS: dict[str, Any] = {"dtype": "float32", "max_model_len": 320, "block_size": 16, "seed": 0}
SEEN = "<|image|>"
PROMPTS = [
    ("ab", []),
    (f"ab{SEEN}cd", [picture(0, 50, 40)]),
    (f"{SEEN}{'x' * 30}{SEEN}", [picture(1, 28, 90), picture(2, 129, 61)]),
    (f"a{SEEN}b{SEEN}c{SEEN}", [picture(3, 35, 30), picture(4, 64, 64), picture(5, 200, 20)]),
]


def test_only_layers_with_windows_show_later_rows() -> None:
    large = decoder_spec(config_of("gemma4_text", use_bidirectional_attention="vision"))
    assert large.spans_in_windows
    assert not decoder_spec(config_of("gemma4_text")).spans_in_windows


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_large_gemma4(tmp_path_factory.mktemp("large"))


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> list[Answer]:
    """Answers of requests that are alone."""
    with LLM(model=str(checkpoint), enable_prefix_caching=False, **SETTINGS) as llm:
        answers = [ours(llm, [prompt_of(*prompt)])[0] for prompt in PROMPTS]
    assert len({str(answer) for answer in answers}) == len(answers)
    return answers


@pytest.mark.media
def test_answers_are_those_of_transformers(checkpoint: Path, expected: list[Answer]) -> None:
    with LLM(model=str(checkpoint), **SETTINGS) as llm:
        reference = Reference(llm, checkpoint)
    for found, prompt in zip(expected, PROMPTS, strict=True):
        assert_same(found, reference.answer(*prompt))


@pytest.mark.media
def test_frames_of_a_video_see_themselves_too(checkpoint: Path) -> None:
    text, video = "ab<|video|>cd", frames(1, 3, 112, 84)
    with LLM(model=str(checkpoint), **SETTINGS) as llm:
        reference = WholeReference(llm, checkpoint)
        [found] = ours(llm, [whole_prompt(text, [], [], [video])])
    assert_same(found, reference.whole(text, [], [], [video]))


def test_frames_of_a_video_are_chosen_by_number() -> None:
    """As many as the checkpoint's video processor says, or by time where the server is told so."""
    processor = SimpleNamespace(num_frames=32, sample_frames=partial(sampled, 32))
    assert list(chosen_frames(processor, {})(64, 8.0)) == list(range(0, 64, 2))
    assert list(chosen_frames(processor, {})(5, 8.0)) == list(range(5))
    assert list(chosen_frames(processor, {"num_frames": 4})(64, 8.0)) == [0, 16, 32, 48]
    assert list(chosen_frames(processor, {"fps": 1})(64, 8.0)) == list(range(0, 64, 8))


def sampled(own: int, metadata: Any, num_frames: int | None = None, fps: float | None = None) -> Any:
    """What transformers' base class chooses."""
    return default_sample_indices_fn(metadata, num_frames=num_frames or own, fps=fps)


@pytest.mark.media
def test_rows_that_see_earlier_ones_alone_have_other_answers(tmp_path: Path, expected: list[Answer]) -> None:
    """Or the comparison would say nothing about what sees what."""
    save_large_gemma4(tmp_path)
    overrides = {"text_config": {"use_bidirectional_attention": None}}
    with LLM(model=str(tmp_path), hf_overrides=overrides, **SETTINGS) as llm:
        found = ours(llm, [prompt_of(*prompt) for prompt in PROMPTS[:2]])
    assert found[0] == expected[0]
    assert found[1].logprobs != expected[1].logprobs


@pytest.mark.media
@pytest.mark.parametrize(("backend", "numerics"), [("cpu_paged", "fast"), ("torch_sdpa", "reference")])
def test_company_chunks_preemptions_and_caches_change_no_bit(checkpoint: Path, backend: str, numerics: str) -> None:
    """Attention in plain torch promises it with reference numerics alone."""
    same = {"attention_backend": backend, "numerics": numerics}
    with LLM(model=str(checkpoint), enable_prefix_caching=False, **same, **SETTINGS) as llm:
        alone = [ours(llm, [prompt_of(*prompt)])[0] for prompt in PROMPTS]
    # A step has room for one picture, and the pool none for all answers.
    small = {
        "num_gpu_blocks_override": 50,
        "max_num_batched_tokens": 80,
        "max_num_seqs": 4,
    }
    with LLM(model=str(checkpoint), **small, **same, **SETTINGS) as llm:
        for _ in range(2):  # the second time with cached prefixes
            assert ours(llm, [prompt_of(*prompt) for prompt in PROMPTS]) == alone
        assert llm.stats().num_preemptions


@pytest.mark.media
@pytest.mark.parametrize(
    "more",
    [
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}, "tensor_parallel_size": 2},
        {"enable_lora": True, "kv_offloading_size": 0.01},
        {"enable_sleep_mode": True},
        {"disable_hybrid_kv_cache_manager": True},
    ],
    ids=["ranks and drafts", "adapters and host memory", "sleep", "one group of layers"],
)
def test_the_tokens_are_the_same(checkpoint: Path, expected: list[Answer], more: dict[str, Any]) -> None:
    with LLM(model=str(checkpoint), **{**SETTINGS, **more}) as llm:
        for _ in range(2):
            assert ours(llm, [prompt_of(*prompt) for prompt in PROMPTS]) == expected
            if "enable_sleep_mode" in more:
                llm.sleep(2)
                llm.wake_up()


@pytest.mark.media
def test_sounds_are_refused_by_name_and_so_is_a_picture_that_no_step_could_compute(checkpoint: Path) -> None:
    with LLM(model=str(checkpoint), max_num_batched_tokens=40, max_num_seqs=4, **SETTINGS) as llm:
        media = media_of(llm._config)
        assert media is not None and media.two_sided == "rows"
        with pytest.raises(RequestError, match="this checkpoint has no tower of sounds"):
            llm.generate([{"prompt": "a<|audio|>b", "multi_modal_data": {"audio": b"RIFF"}}], use_tqdm=False)
        with pytest.raises(RequestError, match=r"Raise --max-num-batched-tokens by"):
            llm.generate([prompt_of(f"a{SEEN}b", [picture()])], SamplingParams(max_tokens=1), use_tqdm=False)


@pytest.mark.media
@pytest.mark.parametrize("save", [save_gemma4, save_large_gemma4], ids=["small", "large"])
def test_a_stream_goes_on_after_the_death_of_the_engine(save: Any, tmp_path: Path) -> None:
    save(tmp_path / "model")
    with serving(tmp_path / "log", "--model", str(tmp_path / "model"), "--dtype", "float32", "--seed", "0") as server:
        goes_on_after_a_death(server, client_of(server))
