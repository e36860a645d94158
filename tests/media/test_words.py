"""Times of tokens and words in transcriptions, beside those of transformers' generation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from transformers.models.whisper.generation_whisper import _dynamic_time_warping
from transformers.models.whisper.tokenization_whisper import _combine_tokens_into_words

from core import LLM
from core.api.errors import RequestError
from core_config.explained import memory_values
from core_config.resolve import resolve
from core_media.config import media_of
from core_media.serving.encoder import Encoder
from core_media.sound.alignment import _path
from core_media.sound.config import STEP_SECONDS
from core_media.sound.words import words_of
from tests.apis.test_real_server import client_of, serving
from tests.media.test_audio_server import ask
from tests.media.test_transcriptions import Reference
from tests.media.whisper import RATE, save_whisper, sound, whisper_tokenizer

SECONDS = (1.5, 5.5, 0.3, 7.77)


@pytest.fixture(scope="module")
def llm(whisper: Path) -> Iterator[LLM]:
    with LLM(model=str(whisper), dtype="float32", seed=0, enable_word_times=True) as made:
        yield made


class TimedReference(Reference):
    """transformers' model, which says when each token is said."""

    def timed(self, samples: Any, **given: Any) -> list[tuple[list[int], list[float]]]:
        fits = len(samples) <= self.extractor.n_samples
        more: dict[str, Any] = {"padding": "max_length"} if fits else {"truncation": False, "padding": "longest"}
        made = self.extractor(samples, sampling_rate=RATE, return_tensors="pt", return_attention_mask=True, **more)
        found = self.model.generate(
            made["input_features"], attention_mask=made["attention_mask"], return_timestamps=True, return_segments=True,
            return_token_timestamps=True, task="transcribe", **given,
        )  # fmt: skip
        return [(each["tokens"].tolist(), each["token_timestamps"].tolist()) for each in found["segments"][0]]


@pytest.mark.media
def test_tokens_are_said_when_transformers_says(llm: LLM, whisper: Path) -> None:
    reference, differences = TimedReference(whisper), list[float]()
    sounds = [(sound(seconds, seed), RATE) for seed, seconds in enumerate(SECONDS)]
    found = llm.transcribe(sounds, language="en", words=True, timestamps=True)
    for (samples, _), transcript in zip(sounds, found, strict=True):
        expected = reference.timed(samples, language="en")
        assert [each.tokens for each in transcript.segments] == [tokens for tokens, _ in expected]
        for segment, (_, times) in zip(transcript.segments, expected, strict=True):
            # Where two paths cost the same but for rounding, theirs may pass one row earlier or later.
            assert segment.times == pytest.approx(times, abs=STEP_SECONDS + 1e-4)
            differences += np.abs(np.subtract(segment.times, times)).tolist()
        assert "".join(word.word for word in transcript.words) == "".join(each.text for each in transcript.segments)
        assert all(word.start <= word.end for word in transcript.words)
    assert np.mean(np.array(differences) < 1e-4) > 0.9


@pytest.mark.media
def test_times_are_equal_alone_and_in_company_and_the_text_is_that_without_them(llm: LLM) -> None:
    sounds = [(sound(seconds, seed), RATE) for seed, seconds in enumerate(SECONDS)]
    together = llm.transcribe(sounds, language="en", words=True, timestamps=True)
    alone = [llm.transcribe(each, language="en", words=True, timestamps=True)[0] for each in sounds]
    assert [each.words for each in alone] == [each.words for each in together]
    plain = llm.transcribe(sounds, language="en", timestamps=True)
    assert [each.text for each in plain] == [each.text for each in together]


@pytest.mark.media
def test_the_openai_client_gets_words(whisper: Path, tmp_path: Path) -> None:
    limits = ["--max-model-len", "128", "--enable-word-times"]
    with serving(tmp_path / "log", "--model", str(whisper), "--dtype", "float32", "--seed", "0", *limits) as running:
        client = client_of(running)
        given: dict[str, Any] = {
            "seconds": 5.5,
            "language": "en",
            "response_format": "verbose_json",
            "extra_body": {"seed": 3},
        }
        both = ask(client, timestamp_granularities=["word", "segment"], **given)
        words = ask(client, timestamp_granularities=["word"], **given)
        assert both.segments and words.segments is None
        assert [(each.word, each.start, each.end) for each in both.words] == [
            (each.word, each.start, each.end) for each in words.words
        ]
        assert all(0 <= each.start <= each.end <= 5.5 for each in words.words)


@pytest.mark.media
def test_without_the_argument_or_heads_words_are_refused_with_the_reason(whisper: Path, tmp_path: Path) -> None:
    with (
        LLM(model=str(whisper), dtype="float32") as plain,
        pytest.raises(RequestError, match="without --enable-word-times"),
    ):
        plain.transcribe((sound(), RATE), words=True)
    directory = save_whisper(tmp_path)
    file = directory / "generation_config.json"
    file.write_text(
        json.dumps({key: value for key, value in json.loads(file.read_text()).items() if "heads" not in key})
    )
    with (
        LLM(model=str(directory), dtype="float32", enable_word_times=True) as headless,
        pytest.raises(RequestError, match="no alignment_heads"),
    ):
        headless.transcribe((sound(), RATE), words=True)


def test_the_plan_has_the_bytes_of_the_second_decoder(whisper: Path) -> None:
    found = resolve({"model": str(whisper), "enable_word_times": True}, context="llm")
    media = media_of(found.engine)
    assert media is not None and media.sound is not None and media.sound.words
    assert memory_values(found.memory)["tower_bytes"] == Encoder(found.engine, media.sound).num_bytes


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (5, 3), (7, 40), (12, 12)])
def test_the_path_is_that_of_transformers(shape: tuple[int, int]) -> None:
    draw = np.random.default_rng(shape[1])
    for matrix in (draw.normal(size=shape), np.round(draw.normal(size=shape)), np.full(shape, np.nan)):
        expected, found = _dynamic_time_warping(matrix), _path(matrix)
        assert [each.tolist() for each in found] == [each.tolist() for each in expected]


@pytest.mark.parametrize(
    ("text", "language"),
    [
        (" Hello, world! It's (really) fine.", "en"),
        (" «Ça va», dit-il... “oui” ¿no?", "fr"),
        (" 12,5 % \u2014 ok", "de"),
        ("今日は。いい天気", "ja"),
        ("", "en"),
        ("\u00e9", "en"),
    ],
)
def test_words_are_those_of_transformers(text: str, language: str) -> None:
    tokenizer = whisper_tokenizer()
    tokens = tokenizer.encode(text, add_special_tokens=False).ids

    def decode(ids: list[int]) -> str:
        return str(tokenizer.decode(ids, skip_special_tokens=False))

    theirs = SimpleNamespace(
        decode=lambda ids, decode_with_timestamps: decode(ids), eos_token_id=tokenizer.token_to_id("<|endoftext|>")
    )
    name = {"ja": "japanese"}.get(language, "english")
    words, _, indices = _combine_tokens_into_words(theirs, tokens, name)
    spans = [(float(index), float(index) + 1) for index in range(len(tokens))]
    found = words_of(tokens, spans, language, decode)
    assert [each.word for each in found] == words
    assert [(each.start, each.end) for each in found] == [(float(at[0]), float(at[-1]) + 1) for at in indices]
