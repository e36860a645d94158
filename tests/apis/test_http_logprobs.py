"""Log-probabilities in OpenAI's two forms, and the extras around them."""

import json
import threading
from typing import Any

import pytest

from core_apis.answers.completion_writer import CompletionWriter
from tests.apis.conftest import RunningServer
from tests.apis.fake_engine import ANSWERS

HI = [{"role": "user", "content": "Hi"}]


def complete(server: RunningServer, **body: Any) -> dict[str, Any]:
    answer = server.http.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 4, **body})
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def test_completion_logprobs(server: RunningServer) -> None:
    logprobs = complete(server, logprobs=3)["choices"][0]["logprobs"]
    assert logprobs["tokens"] == list("Hell")
    assert logprobs["text_offset"] == [0, 1, 2, 3]
    assert logprobs["token_logprobs"] == [-1.0] * 4
    assert all(
        len(top) == 3 and token in top for token, top in zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True)
    )


def test_zero_logprobs_show_the_chosen_token_only(server: RunningServer) -> None:
    logprobs = complete(server, logprobs=0)["choices"][0]["logprobs"]
    assert logprobs["top_logprobs"] == [{"H": -1.0}, {"e": -1.0}, {"l": -1.0}, {"l": -1.0}]


def test_no_logprobs_unless_asked(server: RunningServer) -> None:
    assert complete(server)["choices"][0]["logprobs"] is None


def test_echo_scores_the_prompt(server: RunningServer) -> None:
    choice = complete(server, logprobs=2, echo=True)["choices"][0]
    assert choice["text"] == "HiHell"
    logprobs = choice["logprobs"]
    assert "".join(logprobs["tokens"]) == "<s>HiHell"
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    assert all(value == -1.0 for value in logprobs["token_logprobs"][1:])


def test_prompt_only(server: RunningServer) -> None:
    answer = complete(server, logprobs=1, echo=True, max_tokens=0)
    choice = answer["choices"][0]
    assert choice["text"] == "Hi"
    assert choice["logprobs"]["tokens"] == ["<s>", "H", "i"]
    assert choice["finish_reason"] == "length"
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 3}
    assert complete(server, echo=True, max_tokens=0, n=2)["choices"][1]["text"] == "Hi"


def test_prompt_only_stream(server: RunningServer) -> None:
    stream = server.openai().completions.create(
        model="alias", prompt="Hi", echo=True, max_tokens=0, stream=True, logprobs=1
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Hi"
    assert chunks[-1].choices[0].finish_reason == "length"


def test_streamed_logprobs_equal_whole_ones(server: RunningServer) -> None:
    body: dict[str, Any] = dict(model="alias", prompt="Hi", max_tokens=30, logprobs=2, echo=True)
    whole = server.openai().completions.create(**body).choices[0]
    joined: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    text = ""
    for chunk in server.openai().completions.create(**body, stream=True):
        text += chunk.choices[0].text
        for name, values in joined.items():
            values += getattr(chunk.choices[0].logprobs, name)
    assert whole.logprobs is not None
    assert text == whole.text
    assert joined == whole.logprobs.model_dump()


def test_chat_logprobs(server: RunningServer) -> None:
    client = server.openai()
    body: dict[str, Any] = dict(model="alias", messages=HI, logprobs=True, top_logprobs=2)
    whole = client.chat.completions.create(**body).choices[0].logprobs
    assert whole is not None and whole.content is not None
    text_bytes = bytes(byte for entry in whole.content[:-1] for byte in entry.bytes or [])
    assert text_bytes.decode() == ANSWERS[0], "the bytes of all tokens are the text, also inside of characters"
    for entry in whole.content:
        assert [top.logprob for top in entry.top_logprobs] == [-0.5, -1.0]
        assert entry.top_logprobs[1].token == entry.token
    streamed = [
        entry
        for chunk in client.chat.completions.create(**body, stream=True)
        for entry in (chunk.choices[0].logprobs.content or [] if chunk.choices[0].logprobs else [])
    ]
    assert streamed == whole.content


def test_chat_logprobs_without_alternatives(server: RunningServer) -> None:
    answer = server.openai().chat.completions.create(model="alias", messages=HI, logprobs=True, max_tokens=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert [(entry.token, entry.top_logprobs) for entry in logprobs.content] == [("H", []), ("e", [])]


def test_prompt_logprobs(server: RunningServer) -> None:
    choice = complete(server, prompt_logprobs=1)["choices"][0]
    first, second, _ = choice["prompt_logprobs"]
    assert first is None
    token = str(server.engine.tokenizer.encode("H", add_special_tokens=False)[0])
    assert second[token] == {"logprob": -1.0, "rank": 2, "decoded_token": "H"}
    body = {"messages": HI, "prompt_logprobs": 0, "max_tokens": 1}
    assert server.http.post("/v1/chat/completions", json=body).json()["prompt_logprobs"][0] is None


def test_token_ids_in_answers(server: RunningServer) -> None:
    tokenizer = server.engine.tokenizer
    choice = complete(server, return_token_ids=True)["choices"][0]
    assert choice["prompt_token_ids"] == tokenizer.encode("Hi")
    assert tokenizer.decode(choice["token_ids"]) == "Hell"
    named = complete(server, return_tokens_as_token_ids=True, logprobs=0)["choices"][0]["logprobs"]["tokens"]
    assert named == [f"token_id:{token}" for token in choice["token_ids"]]
    body = {"messages": HI, "return_token_ids": True, "max_tokens": 4}
    chat = server.http.post("/v1/chat/completions", json=body).json()
    assert chat["choices"][0]["token_ids"] == choice["token_ids"]
    assert len(chat["prompt_token_ids"]) == chat["usage"]["prompt_tokens"]


def test_offsets_count_the_characters_of_the_text(server: RunningServer) -> None:
    choice = complete(server, logprobs=1, max_tokens=40)["choices"][0]
    logprobs, text = choice["logprobs"], choice["text"]
    assert "ö" in text and "🙂" in text
    for token, offset, following in zip(
        logprobs["tokens"], logprobs["text_offset"], [*logprobs["text_offset"][1:], len(text)], strict=True
    ):
        if not token.startswith("bytes:") and token != "</s>":
            assert text[offset:following] == token
    pieces = [token for token in logprobs["tokens"] if token.startswith("bytes:")]
    assert pieces[:2] == ["bytes:\\xc3", "bytes:\\xb6"]
    assert logprobs["text_offset"][-1] == len(text)


def test_parts_of_characters_stay_apart(server: RunningServer) -> None:
    prompt = server.engine.tokenizer.encode("Hi")
    body = {"prompt": [prompt], "logprobs": 20, "max_tokens": 40}
    tops = complete(server, **body)["choices"][0]["logprobs"]["top_logprobs"]
    assert all(len(top) == 20 for top in tops)


def test_usage_is_null_until_the_chunk_that_brings_it(server: RunningServer) -> None:
    for path, prompt in (("/v1/completions", {"prompt": "Hi"}), ("/v1/chat/completions", {"messages": HI})):
        body = {**prompt, "max_tokens": 4, "stream": True}
        for options, usages in (({"include_usage": True}, {None}), (None, set())):
            answer = server.http.post(path, json=body | {"stream_options": options})
            lines = [line for line in answer.text.split("\n\n") if line.startswith("data: {")]
            chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
            last = [chunks.pop()["usage"]] if options else []
            assert {chunk.get("usage", "absent") for chunk in chunks} == (usages or {"absent"})
            assert all(usage["completion_tokens"] == 4 for usage in last)


def test_long_answers_are_written_beside_the_streams_of_others(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    write = CompletionWriter.choices

    def spy(self: CompletionWriter, *arguments: Any) -> Any:
        threads.append(threading.current_thread().name)
        return write(self, *arguments)

    monkeypatch.setattr(CompletionWriter, "choices", spy)
    complete(server, logprobs=1)
    complete(server, prompt="x" * 200, echo=True, logprobs=20)
    assert len(set(threads)) == 2
