"""Sounds in prompts: the prompts, tokens and logits of transformers, and the same bits in all circumstances."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoFeatureExtractor, AutoModelForMultimodalLM, AutoProcessor, AutoTokenizer
from transformers.models.voxtral.processing_voxtral import VoxtralProcessor

from core import LLM, SamplingParams
from core.api.errors import RequestError
from core_media.families import SOUNDS
from tests.media.comparison import GREEDY, Answer, Reference, assert_same, crowded, ours
from tests.media.gemma3n import loaded_gemma3n
from tests.media.heard import RATE, SAVE_HEARD, save_granite, sound, wav

SETTINGS: dict[str, Any] = {"dtype": "float32", "max_model_len": 1600, "block_size": 16, "seed": 0}
KINDS = [pytest.param(kind, marks=pytest.mark.media) for kind in sorted(SAVE_HEARD)]


class HeardReference(Reference):
    """transformers' model, fed by transformers' processor of sounds."""

    def __init__(self, directory: Path, kind: str) -> None:
        self._kind = kind
        self._directory = directory
        if kind == "gemma3n":
            self._model = loaded_gemma3n(directory)
        else:
            self._model = AutoModelForMultimodalLM.from_pretrained(directory, dtype=torch.float32).eval()
        # transformers 5.24 leaves the division of Granite's logits out around towers, unlike GraniteForCausalLM.
        scaling = getattr(self._model.config.get_text_config(), "logits_scaling", 1.0)
        self._model.lm_head.register_forward_hook(lambda module, given, logits: logits / scaling)

    def heard(self, text: str, sounds: list[Any]) -> Answer:
        samples = [each for each, _ in sounds]
        if self._kind != "voxtral":
            backend = {"backend": "pil"} if self._kind == "gemma3n" else {}
            processor = AutoProcessor.from_pretrained(self._directory, **backend)
            given = {"audio": samples, "audio_kwargs": {"sampling_rate": RATE}} if samples else {}
            if self._kind == "granite_speech":
                given.pop("audio_kwargs", None)
            return self.answered(processor(text=text, return_tensors="pt", **given))
        # The processor takes conversations of mistral-common alone; its features are made as it makes them.
        bare = SimpleNamespace(feature_extractor=AutoFeatureExtractor.from_pretrained(self._directory))
        settings = dict(VoxtralProcessor.audio_kwargs)
        frames = settings.pop("max_source_positions")
        given = {}
        for each in samples:
            text = text.replace("[AUDIO]", "<one>" * (375 * -(-len(each) // 480_000)), 1)
        if samples:
            given = {"input_features": VoxtralProcessor._retrieve_input_features(bare, samples, frames, **settings)}
        tokenizer = AutoTokenizer.from_pretrained(self._directory)
        return self.answered({**tokenizer(text.replace("<one>", "[AUDIO]"), return_tensors="pt"), **given})


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def checkpoint(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return SAVE_HEARD[kind](tmp_path_factory.mktemp(kind))


def prompt_of(text: str, sounds: list[Any]) -> dict[str, Any]:
    return {"prompt": text, "multi_modal_data": {"audio": sounds}} if sounds else {"prompt": text}


def prompts(kind: str) -> list[tuple[str, list[Any]]]:
    mark = SOUNDS[kind]
    # These processors fill the shorter of several sounds with silence, which the encoder hears; here each is alone.
    is_filled = kind in ("gemma3n", "granite_speech")
    longer = [sound(4, 31.0)] if kind == "voxtral" else [sound(4, 1.9), sound(5, 1.9 if is_filled else 0.13)]
    return [
        ("ab", []),
        (f"ab{mark}cd", [sound(1, 0.7)]),
        (f"{mark}ab{mark}", [sound(2, 0.35), sound(3, 0.35 if is_filled else 1.01)]),
        (f"a{mark}b{mark * (len(longer) - 1)}c", longer),
    ]


@pytest.fixture(scope="module")
def expected(checkpoint: Path, kind: str) -> list[Answer]:
    """Answers of requests that are alone."""
    with LLM(model=str(checkpoint), enable_prefix_caching=False, **SETTINGS) as llm:
        answers = [ours(llm, [prompt_of(*prompt)])[0] for prompt in prompts(kind)]
    assert len({str(answer) for answer in answers}) == len(answers)
    return answers


def test_a_family_answers_as_transformers_does(checkpoint: Path, kind: str, expected: list[Answer]) -> None:
    reference = HeardReference(checkpoint, kind)
    for found, (text, sounds) in zip(expected, prompts(kind), strict=True):
        assert_same(found, reference.heard(text, sounds))


@pytest.mark.media
def test_company_chunks_preemptions_and_caches_change_no_bit(
    checkpoint: Path, kind: str, expected: list[Answer]
) -> None:
    with LLM(model=str(checkpoint), **{**SETTINGS, **crowded(expected, 6 if kind == "gemma3n" else 0)}) as llm:
        for _ in range(2):  # the second time with cached prefixes
            assert ours(llm, [prompt_of(*prompt) for prompt in prompts(kind)]) == expected
        assert llm.stats().num_preemptions


@pytest.mark.media
@pytest.mark.parametrize(
    "more",
    [
        {"tensor_parallel_size": 2, "speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
        {"data_parallel_size": 2},
        {"enable_lora": True, "kv_offloading_size": 0.01, "num_gpu_blocks_override": 110},
    ],
    ids=["ranks and drafts", "a group", "adapters and host memory"],
)
def test_the_tokens_are_the_same(checkpoint: Path, kind: str, expected: list[Answer], more: dict[str, Any]) -> None:
    if kind == "gemma3n":  # the model cannot be divided
        more = {name: value for name, value in more.items() if name != "tensor_parallel_size"}
    with LLM(model=str(checkpoint), **{**SETTINGS, **more}) as llm:
        for _ in range(2):
            assert ours(llm, [prompt_of(*prompt) for prompt in prompts(kind)]) == expected


@pytest.mark.media
def test_files_at_other_rates_and_another_sound_behind_the_same_text(checkpoint: Path, kind: str) -> None:
    text = f"ab{SOUNDS[kind]}cd"
    with LLM(model=str(checkpoint), **SETTINGS) as llm:
        first = ours(llm, [prompt_of(text, [wav(1)])])
        assert ours(llm, [prompt_of(text, [sound(1)])]) == first
        assert ours(llm, [prompt_of(text, [wav(1, rate=44_100)])])[0].prompt == first[0].prompt
        assert ours(llm, [prompt_of(text, [wav(2)])]) != first


@pytest.mark.media
def test_a_sound_longer_than_the_model_hears_is_refused(tmp_path: Path) -> None:
    SAVE_HEARD["qwen2_audio"](tmp_path)
    with LLM(model=str(tmp_path), **SETTINGS) as llm:
        with pytest.raises(RequestError, match=r"2\.1 s long; the model hears 2 s"):
            llm.generate([prompt_of("<|AUDIO|>", [sound(1, 2.1)])], GREEDY, use_tqdm=False)
        with pytest.raises(RequestError, match="this model takes 'audio' only"):
            llm.generate([{"prompt": "a", "multi_modal_data": {"image": [b"x"]}}], GREEDY, use_tqdm=False)


@pytest.mark.media
def test_a_checkpoint_whose_sounds_need_its_own_adapter_serves_the_text_alone(tmp_path: Path) -> None:
    save_granite(tmp_path, has_lora_adapter=True)
    with LLM(model=str(tmp_path), **SETTINGS) as llm:
        with pytest.raises(RequestError, match="has_lora_adapter"):
            llm.generate([prompt_of("<|audio|>", [sound()])], GREEDY, use_tqdm=False)
        assert llm.generate(["abc"], SamplingParams(max_tokens=1), use_tqdm=False)
