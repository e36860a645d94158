"""`core serve` with Whisper: the openai client's own calls, bad input, and deaths of processes."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from core import LLM
from core_media.processing.sounds import wav_of
from tests.apis.test_real_server import Server, client_of, serving
from tests.media.whisper import RATE, sound


@pytest.fixture(scope="module")
def server(whisper: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "log"
    limits = ["--max-model-len", "128", "--max-audio-seconds", "60"]
    with serving(log, "--model", str(whisper), "--dtype", "float32", "--seed", "0", *limits) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return client_of(server)


def ask(client: openai.OpenAI, seconds: float = 1.5, seed: int = 0, **options: Any) -> Any:
    given = {"file": ("sound.wav", wav_of(sound(seconds, seed), RATE)), "model": client.models.list().data[0].id}
    return client.audio.transcriptions.create(**{**given, "temperature": 0.5, **options})


def test_clients_own_calls_give_the_text_in_every_form(client: openai.OpenAI) -> None:
    given = {"seconds": 5.5, "seed": 1, "language": "en", "extra_body": {"seed": 3}}
    whole = ask(client, response_format="verbose_json", timestamp_granularities=["segment"], **given)
    assert (whole.language, whole.duration, whole.task) == ("en", 5.5, "transcribe")
    ends = [each.end for each in whole.segments]
    assert ends == sorted(ends)
    assert len(ends) > 3
    assert all(
        each.temperature == 0.5 and each.avg_logprob < 0 and 0 < each.no_speech_prob < 1 for each in whole.segments
    )
    assert ask(client, response_format="text", **given).strip() == whole.text.strip()
    plain = ask(client, **given)
    assert plain.text == whole.text
    assert plain.usage.seconds == 6
    srt, vtt = (ask(client, response_format=form, **given) for form in ("srt", "vtt"))
    assert srt.startswith("1\n00:00:0")
    assert vtt.startswith("WEBVTT\n\n00:00:0")
    assert srt.count(" --> ") == vtt.count(" --> ") == sum(bool(each.text.strip()) for each in whole.segments)
    events = list(ask(client, stream=True, **given))
    assert events[-1].type == "transcript.text.done"
    assert "".join(each.delta for each in events[:-1]).strip() == events[-1].text == whole.text


@pytest.mark.media
def test_the_server_and_the_library_agree(client: openai.OpenAI, whisper: Path) -> None:
    found = [ask(client, 5.5, seed, temperature=[0.0, 0.0] if seed else 0.0, prompt="names") for seed in (0, 1)]
    with LLM(model=str(whisper), dtype="float32", seed=0) as llm:
        [alone] = llm.transcribe((sound(5.5, 1), RATE), prompt="names", temperature=0.0)
    translated = client.audio.translations.create(
        model=client.models.list().data[0].id, file=("a", wav_of(sound(1.0), RATE)), temperature=0.5
    )
    assert found[1].text == alone.text
    assert translated.text


BAD = [
    ({"file": ("a", b"")}, "file: the file is empty"),
    ({"file": ("a", b"abc")}, "file: it is no sound"),
    ({"seconds": 0.01}, "0.01 s long; expected at least 0.1 s"),
    ({"seconds": 61}, "longer than 60 s (--max-audio-seconds)"),
    ({"file": ("a", wav_of(sound(1.0), 1))}, "1 samples a second"),
    ({"language": "xx"}, "expected one of de, en, fr"),
    ({"temperature": 3}, "temperature is '3'; expected a number from 0 to 1"),
    ({"response_format": "diarized_json"}, "response_format is 'diarized_json'"),
    ({"timestamp_granularities": ["word"], "response_format": "verbose_json"}, "without --enable-word-times"),
    ({"timestamp_granularities": ["segment"]}, "needs response_format 'verbose_json'"),
    ({"include": ["logprobs"]}, "include[] is not served"),
    ({"stream": True, "response_format": "srt"}, "A stream has no response_format 'srt'"),
    ({"extra_body": {"languages": "en"}}, "'languages'"),
]


@pytest.mark.parametrize(("options", "sentence"), BAD)
def test_bad_requests_are_a_400_with_a_sentence(client: openai.OpenAI, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, **options)
    assert sentence in str(caught.value)


def test_other_bodies_and_models_are_refused(server: Server, client: openai.OpenAI) -> None:
    model = client.models.list().data[0].id
    with pytest.raises(openai.BadRequestError, match="use /v1/audio/transcriptions"):
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": "x"}])
    with pytest.raises(openai.BadRequestError, match="use /v1/audio/transcriptions"):
        client.completions.create(model=model, prompt="x")
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        ask(client, model="other")
    request = urllib.request.Request(
        server.base + "/v1/audio/transcriptions", b"{}", {"content-type": "application/json"}
    )
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request)
    assert caught.value.code == 415
    assert "multipart/form-data" in json.load(caught.value)["error"]["message"]


@pytest.mark.media
def test_a_transcription_goes_on_after_the_death_of_the_engine(server: Server, client: openai.OpenAI) -> None:
    options = {"seconds": 50.0, "seed": 7, "temperature": [0.0, 0.0], "language": "en"}
    expected = ask(client, **options).text
    found: list[str] = []
    asking = threading.Thread(target=lambda: found.append(ask(client, **options).text))
    stream = iter(ask(client, stream=True, **options))
    next(stream)
    asking.start()
    children = psutil.Process(server.process.pid).children(recursive=True)
    [engine] = [child for child in children if any("core.engine" in word for word in child.cmdline())]
    engine.kill()
    assert list(stream)[-1].text == expected
    asking.join(120)
    assert found == [expected]
