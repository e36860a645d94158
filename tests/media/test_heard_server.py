"""`core serve` with sounds in prompts and with videos: the clients' own calls, bad input, and the death of an engine."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.apis.test_real_server import Server, client_of, serving
from tests.media.checkpoints import SAVE
from tests.media.heard import save_qwen2_audio, wav
from tests.media.seen import frames, video_file
from tests.media.test_server import ask, data_url, processes, text

pytestmark = pytest.mark.media


def heard(data: bytes, kind: str = "wav") -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": kind}}


def at(data: bytes, kind: str = "audio") -> dict[str, Any]:
    name = {"audio": "audio/wav", "video": "video/mp4"}[kind]
    return {"type": f"{kind}_url", f"{kind}_url": {"url": data_url(data, name)}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    checkpoint = save_qwen2_audio(tmp_path_factory.mktemp("heard"))
    log = tmp_path_factory.mktemp("server") / "log"
    limits = ["--limit-mm-per-prompt", "audio=2", "--max-audio-seconds", "5"]
    with serving(log, "--model", str(checkpoint), "--dtype", "float32", "--seed", "0", *limits) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return client_of(server)


def test_clients_own_calls_hear_sounds(client: openai.OpenAI) -> None:
    answer = ask(client, text("a <|AUDIO|> b"), heard(wav(1)), text("c"), heard(wav(2)))
    assert ask(client, text("a <|AUDIO|> b"), at(wav(1)), text("c"), at(wav(2))).choices == answer.choices
    assert ask(client, text("a <|AUDIO|> b"), at(wav(2)), text("c"), at(wav(1))).choices != answer.choices
    content: Any = [{"type": "input_text", "text": "ab"}, heard(wav(1))]
    response = client.responses.create(
        model=answer.model,
        input=[{"role": "user", "content": content}],
        max_output_tokens=4,
        temperature=0,
        store=False,
    )
    assert response.usage is not None
    assert response.usage.input_tokens == ask(client, text("ab"), heard(wav(1))).usage.prompt_tokens


BAD = [
    (heard(b""), "empty"),
    (heard(b"RIFF"), "no sound that can be read"),
    (heard(wav(1), "mp3"), "said to be audio/mp3, but holds wav"),
    (heard(wav(1)[:100]), "at least 0.1 s"),
    (heard(wav(1, 0.01)), "at least 0.1 s"),
    (heard(wav(1, 5.5)), "--max-audio-seconds"),
    (heard(wav(1, 3.0)), "the model hears 2 s"),
    (heard(wav(1, 0.7, 1)), "samples a second"),
    ({"type": "input_audio", "input_audio": {"data": "@@@", "format": "wav"}}, "no base64"),
    ({"type": "input_audio", "input_audio": {"data": 7}}, "no data"),
    ({"type": "input_audio", "input_audio": "x"}, "no data"),
    ({"type": "audio_url"}, "URL is missing"),
    ({"type": "audio_url", "audio_url": {"url": "http://169.254.169.254/"}}, "--allowed-media-domains"),
    ({"type": "audio_url", "audio_url": {"url": "file:///etc/passwd"}}, "--allowed-local-media-path"),
    ({"type": "image_url", "image_url": {"url": "data:,"}}, "takes parts of type 'text' and 'input_audio' only"),
    (at(video_file(frames(1, 4)), "video"), "takes parts of type 'text' and 'input_audio' only"),
]


@pytest.mark.parametrize(("part", "sentence"), BAD, ids=[str(index) for index in range(len(BAD))])
def test_bad_sounds_are_a_400_with_their_place(client: openai.OpenAI, part: dict[str, Any], sentence: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, text("a"), part)
    assert "messages[0].content[1]" in str(caught.value)
    assert sentence in str(caught.value)


def test_more_sounds_than_the_limit_are_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="sound 3 of the prompt; at most 2"):
        ask(client, heard(wav(1)), heard(wav(1)), heard(wav(1)))


def dies_and_goes_on(server: Server, client: openai.OpenAI, *parts: dict[str, Any]) -> None:
    options = {"max_tokens": 150}
    expected = ask(client, *parts, **options).choices[0].token_ids
    tokens: list[int] = []
    for number, chunk in enumerate(ask(client, *parts, stream=True, **options)):
        for choice in chunk.choices:
            tokens += getattr(choice, "token_ids", None) or []
        if number == 3:
            [engine] = processes(server, "core.engine") or processes(server, "engine_main")
            engine.kill()
    assert tokens == expected


def test_answers_to_sounds_go_on_after_the_death_of_the_engine(server: Server, client: openai.OpenAI) -> None:
    dies_and_goes_on(server, client, text("go on"), heard(wav(3)))


def test_videos_are_seen_and_bad_ones_are_a_400(tmp_path: Path) -> None:
    checkpoint = SAVE["qwen3_vl"](tmp_path / "model")
    file = tmp_path / "config.json"
    file.write_bytes(video_file(frames(1, 9)))
    limits = ["--max-video-frames", "6", "--allowed-local-media-path", str(tmp_path)]
    with serving(tmp_path / "log", "--model", str(checkpoint), "--dtype", "float32", "--seed", "0", *limits) as server:
        client = client_of(server)
        seen = ask(client, text("ab"), at(video_file(frames(1, 9)), "video"))
        named = ask(client, text("ab"), {"type": "video_url", "video_url": {"url": f"file://{file}"}})
        assert named.choices == seen.choices
        other = ask(client, text("ab"), at(video_file(frames(2, 9)), "video"))
        assert other.usage.prompt_tokens == seen.usage.prompt_tokens
        assert other.choices != seen.choices
        for data, sentence in (
            (b"", "empty"), (b"#EXTM3U", "no video that can be read"), (wav(1), "no video that can be read"),
            (video_file(frames(1, 9))[:300], "cut or damaged"), (video_file(frames(1, 40)), "at most 6 are taken"),
            (video_file(frames(1, 1)[:0]), "no video"),
        ):  # fmt: skip
            with pytest.raises(openai.BadRequestError, match=sentence):
                ask(client, text("a"), at(data, "video"))
        dies_and_goes_on(server, client, text("ab"), at(video_file(frames(1, 9)), "video"))
