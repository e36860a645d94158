"""Pictures and sounds in one prompt: the tokens and logits of transformers, and the same bits in all circumstances.

Gemma 3n's tower of pictures is timm's, so the tests need that package and torchvision.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoProcessor
from transformers.utils import is_timm_available

from core import LLM, SamplingParams, StructuredOutputsParams
from core.api.errors import RequestError
from tests.media.checkpoints import picture
from tests.media.comparison import GREEDY, Answer, Reference, assert_same, crowded, ours
from tests.media.gemma3n import NAMED, loaded_gemma3n, save_gemma3n
from tests.media.heard import RATE, sound

pytestmark = pytest.mark.media
needs_timm = pytest.mark.skipif(not is_timm_available(), reason="the tower of pictures is timm's")
SETTINGS: dict[str, Any] = {"dtype": "float32", "max_model_len": 512, "block_size": 16, "seed": 0}
SEEN, HEARD = NAMED["image_token"], NAMED["audio_token"]
PROMPTS: list[tuple[str, list[Any], list[Any]]] = [
    ("ab", [], []),
    (f"ab{SEEN}cd", [picture(0, 50, 40)], []),
    (f"a{HEARD}b{SEEN}c", [picture(1, 64, 64)], [sound(1, 0.7)]),
    (f"{SEEN}{HEARD}{SEEN}", [picture(2, 30, 90), picture(3, 129, 61)], [sound(2, 1.3)]),
]


def prompt_of(text: str, pictures: Sequence[Any], sounds: Sequence[Any]) -> dict[str, Any]:
    data = {"image": list(pictures), "audio": list(sounds)}
    return {"prompt": text, "multi_modal_data": {name: items for name, items in data.items() if items}}


class WholeReference(Reference):
    """transformers' model and processor."""

    def __init__(self, directory: Path) -> None:
        self._processor = AutoProcessor.from_pretrained(directory, backend="pil")
        self._model = loaded_gemma3n(directory)

    def whole(self, text: str, pictures: list[Any], sounds: list[Any]) -> Answer:
        given: dict[str, Any] = {"images": [pictures]} if pictures else {}
        if sounds:
            given |= {"audio": [samples for samples, _ in sounds], "audio_kwargs": {"sampling_rate": RATE}}
        return self.answered(self._processor(text=text, return_tensors="pt", **given))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_gemma3n(tmp_path_factory.mktemp("gemma3n"))


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> list[Answer]:
    """Answers of requests that are alone."""
    with LLM(model=str(checkpoint), enable_prefix_caching=False, **SETTINGS) as llm:
        answers = [ours(llm, [prompt_of(*prompt)])[0] for prompt in PROMPTS]
    assert len({str(answer) for answer in answers}) == len(answers)
    return answers


@needs_timm
def test_prompts_that_are_seen_and_heard_are_answered_as_by_transformers(
    checkpoint: Path, expected: list[Answer]
) -> None:
    reference = WholeReference(checkpoint)
    for found, prompt in zip(expected, PROMPTS, strict=True):
        assert_same(found, reference.whole(*prompt))


@needs_timm
def test_company_chunks_preemptions_and_caches_change_no_bit(checkpoint: Path, expected: list[Answer]) -> None:
    with LLM(model=str(checkpoint), **{**SETTINGS, **crowded(expected, 6)}) as llm:
        for _ in range(2):  # the second time with cached prefixes
            assert ours(llm, [prompt_of(*prompt) for prompt in PROMPTS]) == expected
        assert llm.stats().num_preemptions


@needs_timm
@pytest.mark.parametrize(
    "more",
    [
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
        {"enable_lora": True, "kv_offloading_size": 0.01, "num_gpu_blocks_override": 110},
        {"enable_sleep_mode": True},
    ],
    ids=["drafts", "adapters and host memory", "sleep"],
)
def test_the_tokens_are_the_same(checkpoint: Path, expected: list[Answer], more: dict[str, Any]) -> None:
    with LLM(model=str(checkpoint), **{**SETTINGS, **more}) as llm:
        for _ in range(2):
            assert ours(llm, [prompt_of(*prompt) for prompt in PROMPTS]) == expected
            if "enable_sleep_mode" in more:
                llm.sleep(2)
                llm.wake_up()


@needs_timm
def test_another_picture_or_sound_misses_the_cache_and_a_grammar_holds(
    checkpoint: Path, expected: list[Answer]
) -> None:
    text, pictures, sounds = PROMPTS[2]
    with LLM(model=str(checkpoint), **SETTINGS) as llm:
        assert ours(llm, [prompt_of(text, pictures, sounds)]) == expected[2:3]
        others = [prompt_of(text, [picture(7)], sounds), prompt_of(text, pictures, [sound(3, 0.7)])]
        made = ours(llm, others)
        assert len({str(answer.logprobs) for answer in (*made, expected[2])}) == 3
        params = SamplingParams(temperature=0.0, max_tokens=8, structured_outputs=StructuredOutputsParams(regex="x{8}"))
        [found] = llm.generate([prompt_of(text, pictures, sounds)], params, use_tqdm=False)
        assert found.outputs[0].text == "x" * 8


@needs_timm
def test_a_modality_whose_limit_is_zero_has_no_tower(checkpoint: Path, expected: list[Answer]) -> None:
    with LLM(model=str(checkpoint), limit_mm_per_prompt={"audio": 0}, **SETTINGS) as llm:
        assert ours(llm, [prompt_of(*PROMPTS[1])]) == expected[1:2]
        with pytest.raises(RequestError, match="--limit-mm-per-prompt allows no sounds"):
            ours(llm, [prompt_of(*PROMPTS[2])])


@pytest.mark.skipif(is_timm_available(), reason="timm is installed")
def test_without_timm_sounds_alone_are_served(checkpoint: Path) -> None:
    with LLM(model=str(checkpoint), **SETTINGS) as llm:
        [found] = llm.generate([prompt_of(f"a{HEARD}b", [], [sound()])], GREEDY, use_tqdm=False)
        assert found.outputs[0].token_ids
        with pytest.raises(RequestError, match="needs timm and torchvision"):
            llm.generate([prompt_of(*PROMPTS[1])], GREEDY, use_tqdm=False)
