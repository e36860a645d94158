"""`core serve` with pictures: the clients' own calls, bad input, and deaths of processes."""

import base64
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from core import LLM, SamplingParams
from tests.apis.test_real_server import Server, client_of, serving
from tests.media.checkpoints import SAVE, file_of, picture

PROCESS = "core_media.processing.process"


def data_url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def shown(seed: int) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(file_of(picture(seed)))}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


@pytest.fixture(scope="module")
def server(llava: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "log"
    arguments = ["--dtype", "float32", "--limit-mm-per-prompt", "image=2", "--seed", "0"]
    with serving(log, "--model", str(llava), *arguments) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return client_of(server)


def ask(client: openai.OpenAI, *parts: dict[str, Any], **options: Any) -> Any:
    given: dict[str, Any] = {
        "temperature": 0,
        "max_tokens": 12,
        "extra_body": {"ignore_eos": True, "return_token_ids": True},
    }
    given["model"] = client.models.list().data[0].id
    messages: Any = [{"role": "user", "content": list(parts)}]
    return client.chat.completions.create(messages=messages, **{**given, **options})


def test_clients_own_calls_see_pictures(server: Server, client: openai.OpenAI, llava: Path) -> None:
    answer = ask(client, text("a <image> b"), shown(1), text("c"), shown(2))
    tokens = answer.choices[0].token_ids
    other = ask(client, text("a <image> b"), shown(2), text("c"), shown(1))
    assert other.choices[0].token_ids != tokens
    for path in ("/reset_mm_cache", "/reset_encoder_cache"):
        assert httpx.post(server.base + path).json() == {"reset": True}
    assert ask(client, text("a <image> b"), shown(1), text("c"), shown(2)).choices[0].token_ids == tokens
    parts = [text("a <image> b"), shown(1), text("c"), shown(2)]
    with LLM(model=str(llava), dtype="float32", max_model_len=512, seed=0) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
        [alone] = llm.chat([{"role": "user", "content": parts}], params, use_tqdm=False)
    assert list(alone.outputs[0].token_ids) == tokens
    url = data_url(file_of(picture(1)))
    content: Any = [{"type": "input_text", "text": "ab"}, {"type": "input_image", "image_url": url, "detail": "auto"}]
    response = client.responses.create(
        model=answer.model, input=[{"role": "user", "content": content}], max_output_tokens=4, temperature=0
    )
    blocks: Any = [
        {"type": "text", "text": "ab"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}},
    ]
    from anthropic import Anthropic

    messages = Anthropic(base_url=server.base, api_key="none").messages
    asked: Any = [{"role": "user", "content": blocks}]
    counted = messages.count_tokens(model=answer.model, messages=asked)
    message = messages.create(model=answer.model, max_tokens=4, messages=asked)
    chat = ask(client, text("ab"), shown(1))
    assert response.usage is not None
    assert response.usage.input_tokens == chat.usage.prompt_tokens
    assert message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) == chat.usage.prompt_tokens
    assert counted.input_tokens == chat.usage.prompt_tokens
    call: Any = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "look", "input": {}}]}
    found: Any = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": blocks}]}
    seen = messages.count_tokens(model=answer.model, messages=[*asked, call, found]).input_tokens
    found["content"][0]["content"] = blocks[:1]
    unseen = messages.count_tokens(model=answer.model, messages=[*asked, call, found]).input_tokens
    assert seen - unseen >= 4  # the rows of a picture, at least


BAD = [
    (data_url(b"abc"), "no picture"),
    (data_url(b""), "empty"),
    ("data:image/png;base64,@@@", "no base64"),
    ("data:image/png", "no comma"),
    (data_url(file_of(picture())[:200]), "cut or damaged"),
    (data_url(file_of(picture()), "image/webp"), "holds a PNG"),
    ("http://169.254.169.254/", "--allowed-media-domains"),
    ("file:///etc/passwd", "--allowed-local-media-path"),
    ("", "URL is missing"),
    (7, "URL is missing"),
]


@pytest.mark.parametrize(("url", "sentence"), BAD)
def test_bad_pictures_are_a_400_with_their_place(client: openai.OpenAI, url: object, sentence: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, text("a"), {"type": "image_url", "image_url": {"url": url}})
    assert "messages[0].content[1]" in str(caught.value)
    assert sentence in str(caught.value)


OTHERS = {kind: kind for kind in ("input_audio", "video_url", "image")} | {
    "nothing": "of type .nothing.; this model takes parts of type .text. and .image_url. only",
    "image_embeds": "--enable-mm-embeds",
}
"""{type of a part: what its refusal names}"""


@pytest.mark.parametrize("kind", OTHERS)
def test_other_parts_are_refused_by_name(client: openai.OpenAI, kind: str) -> None:
    with pytest.raises(openai.BadRequestError, match=OTHERS[kind]):
        ask(client, {"type": kind})


def test_more_pictures_than_the_limit_are_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="at most 2 are taken"):
        ask(client, shown(1), shown(2), shown(3))


def processes(server: Server, module: str) -> list[psutil.Process]:
    children = psutil.Process(server.process.pid).children(recursive=True)
    return [child for child in children if any(module in word for word in child.cmdline())]


def test_a_killed_processing_process_costs_its_own_request(server: Server, client: openai.OpenAI) -> None:
    before = ask(client, text("kill"), shown(4)).choices[0].token_ids
    [process] = processes(server, PROCESS)
    process.suspend()
    failures: list[Exception] = []

    def wait_for_it() -> None:
        try:
            ask(client, shown(50))
        except openai.APIError as error:
            failures.append(error)

    asking = threading.Thread(target=wait_for_it)
    asking.start()
    time.sleep(0.5)
    assert ask(client, text("text goes on")).choices[0].token_ids
    os.kill(process.pid, signal.SIGKILL)
    asking.join(60)
    assert len(failures) == 1
    assert "ended" in str(failures[0])
    assert ask(client, text("kill"), shown(4)).choices[0].token_ids == before
    assert ask(client, text("kill"), shown(51)).choices[0].token_ids


def test_several_processes_read_media_at_once(
    server: Server, client: openai.OpenAI, llava: Path, tmp_path: Path
) -> None:
    """A process that stands still holds up its own picture alone; the next one goes to the process with the fewest jobs."""
    seeds = range(60, 68)
    expected = [ask(client, text("several"), shown(seed)).choices[0].token_ids for seed in seeds]
    arguments = ["--dtype", "float32", "--seed", "0", "--renderer-num-workers", "3", "--mm-processor-cache-gb", "0"]
    with serving(tmp_path / "log", "--model", str(llava), *arguments) as other:
        several = client_of(other)

        def answer(seed: int) -> Any:
            return ask(several, text("several"), shown(seed)).choices[0].token_ids

        with ThreadPoolExecutor(9) as threads:
            assert list(threads.map(answer, seeds)) == expected
            started = processes(other, PROCESS)
            assert len(started) == 3
            for process in started:
                process.suspend()
            futures = [threads.submit(answer, seed) for seed in seeds[:3]]
            for number, process in enumerate(started, 1):
                process.resume()
                while sum(future.done() for future in futures) < number:
                    wait([future for future in futures if not future.done()], 60, FIRST_COMPLETED)
                # The others have a picture each, and a further one does not wait for them.
                assert sum(future.done() for future in futures) == number
                assert threads.submit(answer, seeds[3]).result(60) == expected[3]
            assert [future.result() for future in futures] == expected[:3]


def test_answers_go_on_after_the_death_of_the_engine(server: Server, client: openai.OpenAI) -> None:
    goes_on_after_a_death(server, client)


@pytest.mark.media
@pytest.mark.parametrize("kind", ["gemma3", "qwen2_5_vl", "qwen3_vl"])
def test_answers_of_other_families_go_on_as_well(kind: str, tmp_path: Path) -> None:
    checkpoint = SAVE[kind](tmp_path / "model")
    with serving(tmp_path / "log", "--model", str(checkpoint), "--dtype", "float32", "--seed", "0") as server:
        goes_on_after_a_death(server, client_of(server))


def goes_on_after_a_death(server: Server, client: openai.OpenAI) -> None:
    options = {"max_tokens": 200}
    expected = ask(client, text("go on"), shown(5), **options).choices[0].token_ids
    stream = ask(client, text("go on"), shown(5), stream=True, **options)
    tokens: list[int] = []
    for number, chunk in enumerate(stream):
        for choice in chunk.choices:
            tokens += getattr(choice, "token_ids", None) or []
        if number == 3:
            [engine] = processes(server, "core.engine") or processes(server, "engine_main")
            engine.kill()
    assert tokens == expected
