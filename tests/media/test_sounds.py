"""Files of sounds: every format is read, bad ones are refused; the rules of tokens."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationConfig
from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor

from core.api.errors import RequestError
from core.api.sampling_params import SamplingParams
from core_media.processing.sounds import wav_of
from core_media.sound.decoding import decoded
from core_media.sound.rules import ARGUMENT
from core_media.sound.token_rules import TokenRules
from core_runtime.contracts import LogitsRow
from tests.media.whisper import RATE, sound


def encoded(samples: Any, kind: str, codec: str, rate: int = RATE, layout: str = "mono") -> bytes:
    import av

    stream = io.BytesIO()
    with av.open(stream, "w", format=kind) as container:
        track = container.add_stream(codec, rate=rate, layout=layout)
        frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), format="flt", layout="mono")
        frame.rate = RATE
        for part in (frame, None):
            for made in av.AudioResampler(track.format.name, layout, rate).resample(part) if part else []:
                container.mux(track.encode(made))
        container.mux(track.encode(None))
    return stream.getvalue()


def test_samples_of_a_wav_file_are_what_was_written() -> None:
    samples = sound(0.5)
    assert np.array_equal(decoded(wav_of(samples, RATE), RATE, 10), samples)
    both = np.stack([samples, samples], 1)
    assert np.allclose(decoded(wav_of(both, RATE), RATE, 10), samples, atol=1e-6)
    doubled = decoded(wav_of(np.repeat(samples, 2), 2 * RATE), RATE, 10)
    assert abs(len(doubled) - len(samples)) <= 1


@pytest.mark.parametrize(
    ("kind", "codec", "rate"),
    [
        ("wav", "pcm_s16le", 16_000), ("flac", "flac", 44_100), ("mp3", "libmp3lame", 44_100), ("ogg", "libopus", 48_000),
        ("mp4", "aac", 44_100), ("webm", "libopus", 48_000),
    ],
)  # fmt: skip
def test_every_format_is_read(kind: str, codec: str, rate: int) -> None:
    samples = sound(1.0)
    found = decoded(encoded(samples, kind, codec, rate), RATE, 10)
    assert abs(len(found) - len(samples)) < 0.15 * RATE
    assert np.isfinite(found).all()
    assert 0.3 < found.std() / samples.std() < 1.5


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "empty"),
        (b"abc", "no sound that can be read"),
        (b"#EXTM3U\nhttp://127.0.0.1/x.wav", "no sound that can be read"),
        (b"ffconcat version 1.0\nfile /etc/passwd", "no sound that can be read"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "no sound that can be read"),
        (wav_of(sound(0.01), RATE), "0.01 s long"),
        (wav_of(sound(1.0), 1), "1 samples a second"),
        (wav_of(np.zeros(6 * RATE, np.float32), RATE), "longer than 5 s (--max-audio-seconds)"),
        (b"RIFF\x00\x00\x00\x00WAVE" + bytes(40), "cut or damaged"),
        (b"fLaC" + bytes(60), "cut or damaged"),
    ],
)
def test_bad_sounds_are_refused(data: bytes, sentence: str) -> None:
    with pytest.raises(RequestError) as caught:
        decoded(data, RATE, 5)
    assert sentence in str(caught.value)


def test_a_damaged_file_is_read_or_refused_wherever_it_is_damaged() -> None:
    whole = encoded(sound(0.4), "flac", "flac")
    for at in range(4, len(whole), 601):
        damaged = bytearray(whole)
        damaged[at] ^= 0xFF
        try:
            assert decoded(bytes(damaged), RATE, 10).dtype == np.float32
        except RequestError:
            continue


END, NO_TIMES, SIZE = 10, 14, 40


def outputs() -> list[list[int]]:
    draw = np.random.default_rng(0)
    found: list[list[int]] = [[], [15], [15, 3], [15, 3, 20], [15, 3, 20, 20], [15, 3, 20, 20, 4], [39], [2, 39]]
    return [*found, *(draw.integers(0, SIZE, draw.integers(1, 7)).tolist() for _ in range(40))]


@pytest.mark.parametrize("latest", [None, 5])
def test_rules_of_times_are_those_of_transformers(latest: int | None) -> None:
    config = GenerationConfig(no_timestamps_token_id=NO_TIMES, eos_token_id=END, max_initial_timestamp_index=latest)
    theirs = WhisperTimeStampLogitsProcessor(config, begin_index=2)
    rules = {"end": END, "no_times": NO_TIMES, "times": True, "latest_first": latest}
    params = SamplingParams(extra_args={ARGUMENT: rules})
    draw = torch.Generator().manual_seed(0)
    for output in outputs():
        logits = 3 * torch.randn(1, SIZE, generator=draw)
        expected = theirs(torch.tensor([[1, 1, *output]]), logits.clone())
        row = LogitsRow(("a", 0), params, np.array([1, 1], np.int32), np.array(output, np.int32), 0)
        assert torch.equal(TokenRules().apply(logits.clone(), [row]), expected), output


def test_wrong_rules_are_an_error_of_their_request() -> None:
    with pytest.raises(ValueError, match="whisper"):
        TokenRules().validate_params(SamplingParams(extra_args={ARGUMENT: {"end": "x"}}))
