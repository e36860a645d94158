"""Pictures, sounds and videos in one prompt of models with towers of transformers alone: its tokens and logits, equal bits."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from transformers import AutoModelForMultimodalLM
from transformers.video_utils import VideoMetadata

from core import LLM, SamplingParams, StructuredOutputsParams
from core.api.errors import RequestError
from core_media.config import media_of
from core_media.processing.image_processor import ImageProcessor
from tests.media.checkpoints import picture
from tests.media.comparison import Answer, Reference, assert_same, crowded, ours
from tests.media.heard import RATE, sound
from tests.media.omni import HEARD, SAVE_OMNI, SEEN, VIDEO, as_published
from tests.media.seen import Frames, frames

pytestmark = pytest.mark.media
SETTINGS: dict[str, Any] = {"dtype": "float32", "max_model_len": 512, "block_size": 16, "seed": 0}
Prompt = tuple[str, list[Any], list[Any], list[Frames]]


def prompts(kind: str) -> list[Prompt]:
    """No prompt ends with an item, see `test_families.compare`."""
    see, hear = SEEN[kind], HEARD[kind]
    # Rows of Gemma 4's sounds depend on the silence that transformers puts behind the shorter ones of a prompt.
    other = 0.4 if kind == "gemma4" else 1.9
    return [
        ("ab", [], [], []),
        (f"ab{see}cd", [picture(0, 50, 40)], [], []),
        (f"a{hear}b", [], [sound(1, 0.7)], []),
        (f"a{hear}b{see}c", [picture(1, 64, 64)], [sound(1, 0.7)], []),
        (f"{see}{hear}{see}z", [picture(2, 30, 90), picture(3, 129, 61)], [sound(2, 1.3)], []),
        (f"a{hear}b{hear}c{see}d", [picture(4)], [sound(3, 0.4), sound(4, other)], []),
        (f"a{VIDEO[kind]}b{hear}c", [], [sound(5, 0.5)], [frames(1, 4, 112, 84)]),
    ]


def prompt_of(text: str, pictures: Sequence[Any], sounds: Sequence[Any], videos: Sequence[Frames]) -> dict[str, Any]:
    data = {"image": list(pictures), "audio": list(sounds), "video": list(videos)}
    return {"prompt": text, "multi_modal_data": {name: items for name, items in data.items() if items}}


class WholeReference(Reference):
    """transformers' model and processor."""

    def __init__(self, llm: LLM, directory: Path) -> None:
        config = media_of(llm._config)
        assert config is not None
        self._processor = ImageProcessor(msgspec.structs.replace(config, model=str(directory))).processor
        model = AutoModelForMultimodalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
        self._model = model.eval()

    def whole(self, text: str, pictures: list[Any], sounds: list[Any], videos: list[Frames]) -> Answer:
        given: dict[str, Any] = {"images": pictures} if pictures else {}
        if sounds:
            given |= {"audio": [samples for samples, _ in sounds], "audio_kwargs": {"sampling_rate": RATE}}
        if videos:
            metadata = [
                VideoMetadata(total_num_frames=len(each), fps=None, frames_indices=list(range(len(each))))
                for each in videos
            ]
            given |= {"videos": videos, "videos_kwargs": {"do_sample_frames": False, "video_metadata": metadata}}
        return self.answered(self._processor(text=text, return_tensors="pt", **given))


@pytest.fixture(scope="module", params=sorted(SAVE_OMNI))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def checkpoint(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return SAVE_OMNI[kind](tmp_path_factory.mktemp(kind))


@pytest.fixture(scope="module")
def expected(checkpoint: Path, kind: str) -> list[Answer]:
    """Answers of requests that are alone."""
    with LLM(model=str(checkpoint), enable_prefix_caching=False, **SETTINGS) as llm:
        answers = [ours(llm, [prompt_of(*prompt)])[0] for prompt in prompts(kind)]
    assert len({str(answer) for answer in answers}) == len(answers)
    return answers


def test_prompts_that_are_seen_and_heard_are_answered_as_by_transformers(
    checkpoint: Path, kind: str, expected: list[Answer]
) -> None:
    with LLM(model=str(checkpoint), **SETTINGS) as llm:
        reference = WholeReference(llm, checkpoint)
    for found, prompt in zip(expected, prompts(kind), strict=True):
        assert_same(found, reference.whole(*prompt))


def test_company_chunks_preemptions_and_caches_change_no_bit(
    checkpoint: Path, kind: str, expected: list[Answer]
) -> None:
    room = crowded(expected, -8 if kind == "gemma4" else 0)
    with LLM(model=str(checkpoint), **{**SETTINGS, **room, "max_num_seqs": 8}) as llm:
        for _ in range(2):  # the second time with cached prefixes
            assert ours(llm, [prompt_of(*prompt) for prompt in prompts(kind)]) == expected
        assert llm.stats().num_preemptions


@pytest.mark.parametrize(
    "more",
    [
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
        {"enable_lora": True, "kv_offloading_size": 0.01, "num_gpu_blocks_override": 110},
        {"enable_sleep_mode": True},
    ],
    ids=["drafts", "adapters and host memory", "sleep"],
)
def test_the_tokens_are_the_same(checkpoint: Path, kind: str, expected: list[Answer], more: dict[str, Any]) -> None:
    # A model with embeddings for each layer cannot be divided.
    ranks = {"tensor_parallel_size": 2} if "speculative_config" in more and kind != "gemma4" else {}
    with LLM(model=str(checkpoint), **{**SETTINGS, **more, **ranks}) as llm:
        for _ in range(2):
            assert ours(llm, [prompt_of(*prompt) for prompt in prompts(kind)]) == expected
            if "enable_sleep_mode" in more:
                llm.sleep(2)
                llm.wake_up()


def test_another_picture_or_sound_misses_the_cache_and_a_grammar_holds(
    checkpoint: Path, kind: str, expected: list[Answer]
) -> None:
    text, pictures, sounds, _ = prompts(kind)[3]
    with LLM(model=str(checkpoint), **SETTINGS) as llm:
        assert ours(llm, [prompt_of(text, pictures, sounds, [])]) == expected[3:4]
        others = [prompt_of(text, [picture(7, 64, 64)], sounds, []), prompt_of(text, pictures, [sound(3, 0.7)], [])]
        made = ours(llm, others)
        assert len({str(answer.logprobs) for answer in (*made, expected[3])}) == 3
        params = SamplingParams(temperature=0.0, max_tokens=8, structured_outputs=StructuredOutputsParams(regex="x{8}"))
        [found] = llm.generate([prompt_of(text, pictures, sounds, [])], params, use_tqdm=False)
        assert found.outputs[0].text == "x" * 8


@pytest.mark.parametrize(("absent", "served"), [("audio", 1), ("image", 2)])
def test_a_modality_whose_limit_is_zero_has_no_tower(
    checkpoint: Path, kind: str, expected: list[Answer], absent: str, served: int
) -> None:
    noun = {"audio": "sounds", "image": "pictures"}[absent]
    with LLM(model=str(checkpoint), limit_mm_per_prompt={absent: 0}, **SETTINGS) as llm:
        assert ours(llm, [prompt_of(*prompts(kind)[served])]) == expected[served : served + 1]
        with pytest.raises(RequestError, match=f"--limit-mm-per-prompt allows no {noun}"):
            ours(llm, [prompt_of(*prompts(kind)[3])])


def test_rows_of_a_video_are_left_out_beside_a_sound(checkpoint: Path, kind: str, expected: list[Answer]) -> None:
    if kind != "qwen2_5_omni_thinker":
        pytest.skip("its videos have text between their frames")
    text, pictures, sounds, videos = prompts(kind)[-1]
    with LLM(model=str(checkpoint), video_pruning_rate=0.3, **SETTINGS) as llm:
        [found] = ours(llm, [prompt_of(text, pictures, sounds, videos)])
        several = [prompt_of(text, pictures, sounds, videos), prompt_of(*prompts(kind)[3])]
        assert ours(llm, several) == [found, expected[3]]
    count = expected[-1].prompt.count(max(set(expected[-1].prompt), key=expected[-1].prompt.count))
    assert len(expected[-1].prompt) - len(found.prompt) == count - int(count * 0.7)


def test_one_model_of_a_published_checkpoint_is_served(
    checkpoint: Path, kind: str, expected: list[Answer], tmp_path: Path
) -> None:
    if kind != "qwen2_5_omni_thinker":
        pytest.skip("it is published as one model")
    with LLM(model=str(as_published(checkpoint, tmp_path / "whole")), **SETTINGS) as llm:
        assert ours(llm, [prompt_of(*prompt) for prompt in prompts(kind)]) == expected
