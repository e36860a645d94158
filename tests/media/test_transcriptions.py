"""Whisper beside transformers: windows, long sounds, languages, fallbacks; and equal bits in every way to run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

from core import LLM, SamplingParams
from core.api.errors import RequestError
from tests.media.whisper import RATE, save_whisper, sound

PROMPT = "<|startoftranscript|><|de|><|transcribe|><|notimestamps|>"
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, logprobs=3)
SECONDS = (1.5, 5.5, 0.3, 2.0, 7.77)


class Reference:
    """transformers' model and feature extractor of a checkpoint."""

    def __init__(self, directory: Path) -> None:
        self.model: Any = WhisperForConditionalGeneration.from_pretrained(directory, dtype=torch.float32).eval()
        self.extractor = WhisperFeatureExtractor.from_pretrained(directory)

    def features(self, samples: Any) -> torch.Tensor:
        fits = len(samples) <= self.extractor.n_samples
        given: dict[str, Any] = {} if fits else {"truncation": False, "padding": "longest"}
        found = self.extractor(samples, sampling_rate=RATE, return_tensors="pt", **given)["input_features"]
        assert isinstance(found, torch.Tensor)
        return found

    def segments(self, samples: Any, **given: Any) -> list[tuple[float, float, list[int]]]:
        made = self.model.generate(
            self.features(samples), return_timestamps=True, return_segments=True, **{"task": "transcribe", **given}
        )
        return [(round(float(each["start"]), 2), round(float(each["end"]), 2), each["tokens"].tolist())
                for each in made["segments"][0]]  # fmt: skip


@pytest.fixture(scope="module")
def reference(whisper: Path) -> Reference:
    return Reference(whisper)


@pytest.fixture(scope="module")
def llm(whisper: Path) -> Iterator[LLM]:
    with LLM(model=str(whisper), dtype="float32", seed=0) as made:
        yield made


def segments(transcript: Any) -> list[tuple[float, float, list[int]]]:
    return [(round(each.start, 2), round(each.end, 2), each.tokens) for each in transcript.segments]


def prompt_with(seed: int = 0, seconds: float = 1.5) -> dict[str, Any]:
    return {"prompt": PROMPT, "multi_modal_data": {"audio": (sound(seconds, seed), RATE)}}


def facts(output: Any) -> list[Any]:
    [completion] = output.outputs
    return [(token, {key: each.logprob for key, each in place.items()})
            for token, place in zip(completion.token_ids, completion.logprobs, strict=True)]  # fmt: skip


def test_the_decoder_has_the_logits_of_transformers(llm: LLM, reference: Reference) -> None:
    outputs = llm.generate([prompt_with(seed) for seed in range(3)], GREEDY, use_tqdm=False)
    for seed, output in enumerate(outputs):
        [completion] = output.outputs
        prompt = list(output.prompt_token_ids)
        ids = torch.tensor([prompt + list(completion.token_ids)])
        with torch.no_grad():
            logits = reference.model(input_features=reference.features(sound(1.5, seed)), decoder_input_ids=ids).logits
        expected = logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        assert expected.argmax(-1).tolist() == list(completion.token_ids)
        for place, table in enumerate(completion.logprobs or ()):
            for token, each in table.items():
                assert abs(each.logprob - expected[place, token].item()) < 1e-4


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({}, id="language found", marks=pytest.mark.media),
        pytest.param({"language": "de", "task": "translate"}, id="translation", marks=pytest.mark.media),
        pytest.param(
            {"condition_on_prev_tokens": True, "language": "fr"}, id="with the text before", marks=pytest.mark.media
        ),
    ],
)
def test_segments_are_those_of_transformers(llm: LLM, reference: Reference, given: dict[str, Any]) -> None:
    sounds = [(sound(seconds, seed), RATE) for seed, seconds in enumerate(SECONDS)]
    found = llm.transcribe(sounds, timestamps=True, **given)
    for (samples, _), transcript in zip(sounds, found, strict=True):
        assert segments(transcript) == reference.segments(samples, **given)


@pytest.mark.media
def test_a_prompt_goes_before_every_window(llm: LLM, reference: Reference) -> None:
    samples = sound(5.5, 1)
    previous = llm.get_tokenizer().convert_tokens_to_ids("<|startofprev|>")
    ids = torch.tensor([previous, *llm.get_tokenizer().encode(" names", add_special_tokens=False)])
    [found] = llm.transcribe((samples, RATE), prompt="names", language="en")
    assert segments(found) == reference.segments(samples, language="en", prompt_ids=ids)


@pytest.mark.media
def test_unlikely_texts_are_tried_again_and_silence_is_left_out(llm: LLM, reference: Reference) -> None:
    samples = sound(5.5, 3)
    [plain] = llm.transcribe((samples, RATE), language="en")
    limit = sorted(each.avg_logprob for each in plain.segments)[0] + 1e-3
    [silent] = llm.transcribe((samples, RATE), language="en", logprob_threshold=limit, no_speech_threshold=0.0)
    expected = reference.segments(
        samples, language="en", temperature=(0.0,), logprob_threshold=limit, no_speech_threshold=0.0
    )
    assert segments(silent) == expected
    assert len(silent.segments) < len(plain.segments)
    [again] = llm.transcribe((samples, RATE), language="en", temperature=(0.0, 1.0), logprob_threshold=limit, seed=1)
    assert {each.temperature for each in again.segments} >= {1.0}


@pytest.mark.media
def test_a_short_sound_without_times_has_none(llm: LLM, reference: Reference) -> None:
    [found] = llm.transcribe((sound(1.5), RATE), language="en")
    made = reference.model.generate(reference.features(sound(1.5)), language="en", task="transcribe")
    end = llm.get_tokenizer().convert_tokens_to_ids("<|endoftext|>")
    expected = [token for token in made[0].tolist() if token < end]
    assert [token for each in found.segments for token in each.tokens if token < end] == expected


@pytest.mark.media
def test_bits_are_equal_alone_in_company_in_chunks_and_after_a_preemption(llm: LLM, whisper: Path) -> None:
    batch = [prompt_with(seed, 1.0 + seed / 9) for seed in range(6)]
    alone = [facts(llm.generate([one], GREEDY, use_tqdm=False)[0]) for one in batch]
    assert [facts(each) for each in llm.generate(batch, GREEDY, use_tqdm=False)] == alone
    # Four tokens a step cut the prompt; a pool for little more than two sequences sends one away.
    small = {"max_num_seqs": 4, "max_num_batched_tokens": 4, "num_gpu_blocks_override": 18}
    with LLM(model=str(whisper), dtype="float32", seed=0, **small) as tight:
        assert [facts(each) for each in tight.generate(batch, GREEDY, use_tqdm=False)] == alone
        assert tight.stats().num_preemptions > 0
    with LLM(model=str(whisper), dtype="float32", seed=0, enable_prefix_caching=True) as cached:
        for _ in range(2):
            assert [facts(each) for each in cached.generate(batch, GREEDY, use_tqdm=False)] == alone


def test_a_sound_heard_before_needs_no_encoder_and_gives_the_same(llm: LLM) -> None:
    first, second = (facts(llm.generate([prompt_with(9)], GREEDY, use_tqdm=False)[0]) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("prompt", "sentence"),
    [
        ("text", "needs {'audio': a sound}"),
        ({"prompt": PROMPT}, "needs {'audio': a sound}"),
        ({"prompt": PROMPT, "multi_modal_data": {"image": 1}}, "needs {'audio': a sound}"),
        ({"prompt": PROMPT, "multi_modal_data": {"audio": 7}}, "is a int; expected the bytes of a file"),
        ({"prompt": PROMPT, "multi_modal_data": {"audio": b""}}, "is empty"),
        ({"prompt": PROMPT, "multi_modal_data": {"audio": (sound(3.0), RATE)}}, "use LLM.transcribe"),
    ],
)
def test_prompts_without_a_window_are_refused(llm: LLM, prompt: Any, sentence: str) -> None:
    with pytest.raises(RequestError) as caught:
        llm.generate([prompt], GREEDY, use_tqdm=False)
    assert sentence in str(caught.value)


@pytest.mark.media
def test_other_models_transcribe_nothing(llava: Path) -> None:
    with (
        LLM(model=str(llava), dtype="float32", max_model_len=512) as other,
        pytest.raises(RequestError, match="transcribes no sounds"),
    ):
        other.transcribe((sound(), RATE))


@pytest.mark.media
def test_sizes_of_other_models_and_both_precisions(tmp_path: Path) -> None:
    shape = {
        "d_model": 128,
        "decoder_attention_heads": 2,
        "encoder_layers": 1,
        "decoder_layers": 2,
        "num_mel_bins": 128,
    }
    directory = save_whisper(tmp_path, seed=3, scale_embedding=True, **shape)
    theirs = Reference(directory)
    with LLM(model=str(directory), dtype="float32", seed=0) as exact:
        for seed in range(4):
            [found] = exact.transcribe((sound(6.3, seed), RATE), language="en")
            assert segments(found) == theirs.segments(sound(6.3, seed), language="en")
    with LLM(model=str(directory), dtype="bfloat16", seed=0) as rounded:
        [found] = rounded.transcribe((sound(6.3), RATE))
        assert found.segments
