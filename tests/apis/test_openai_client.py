"""The official client, sync and async, against the server."""

import asyncio

import openai
import pytest

from tests.apis.conftest import RunningServer
from tests.apis.fake_engine import ANSWERS, MAX_MODEL_LEN, answer_ids

HI = [{"role": "user", "content": "Hi"}]
ALL = dict(model="fake-model", max_tokens=100)


def test_models(server: RunningServer) -> None:
    client = server.openai()
    cards = client.models.list().data
    assert [card.id for card in cards] == ["fake-model", "alias"]
    assert cards[0].owned_by == "core"
    assert cards[0].max_model_len == MAX_MODEL_LEN  # type: ignore[attr-defined]
    assert client.models.retrieve("alias").id == "alias"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_completion(server: RunningServer) -> None:
    answer = server.openai().completions.create(prompt="Hi", **ALL)
    tokens = len(answer_ids(server.engine.tokenizer, 0))
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert [choice.text for choice in answer.choices] == [ANSWERS[0]]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, tokens)
    assert answer.usage.total_tokens == 3 + tokens


def test_default_limit_of_completions_is_16_tokens(server: RunningServer) -> None:
    answer = server.openai().completions.create(model="fake-model", prompt="Hi")
    assert answer.usage is not None and answer.usage.completion_tokens == 16
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].text == ANSWERS[0].encode()[:16].decode(errors="replace")


def test_chat_answers_until_the_end(server: RunningServer) -> None:
    answer = server.openai().chat.completions.create(model="fake-model", messages=HI)
    assert answer.object == "chat.completion"
    message = answer.choices[0].message
    assert (message.role, message.content) == ("assistant", ANSWERS[0])
    assert answer.choices[0].finish_reason == "stop"
    rendered = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    expected = server.engine.tokenizer.encode(rendered, add_special_tokens=False)
    assert answer.usage is not None and answer.usage.prompt_tokens == len(expected)


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_chat_limits(server: RunningServer, field: str) -> None:
    answer = server.openai().chat.completions.create(model="fake-model", messages=HI, **{field: 5})
    assert answer.choices[0].message.content == "Hello"
    assert answer.choices[0].finish_reason == "length"


def test_chat_stream(server: RunningServer) -> None:
    stream = server.openai().chat.completions.create(
        model="fake-model", messages=HI, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(chunk.choices[0].delta.role is None for chunk in chunks[1:-1])
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == ANSWERS[0]
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1] if chunk.choices[0].finish_reason] == ["stop"]
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(answer_ids(server.engine.tokenizer, 0))
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_continuous_usage(server: RunningServer) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    stream = server.openai().completions.create(prompt="Hi", stream=True, stream_options=options, **ALL)  # type: ignore[call-overload]
    counts = [chunk.usage.completion_tokens for chunk in stream]
    assert counts == sorted(counts) and counts[0] >= 1
    assert counts[-1] == len(answer_ids(server.engine.tokenizer, 0))


def test_completion_stream_of_several_prompts_and_choices(server: RunningServer) -> None:
    texts: dict[int, str] = {}
    ends: dict[int, str] = {}
    for chunk in server.openai().completions.create(prompt=["Hi", "You", "There"], n=2, stream=True, **ALL):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
            if choice.finish_reason:
                assert choice.index not in ends
                ends[choice.index] = choice.finish_reason
    assert texts == {index: ANSWERS[index % 2] for index in range(6)}
    assert ends == dict.fromkeys(range(6), "stop")


def test_several_prompts_and_choices_at_once(server: RunningServer) -> None:
    answer = server.openai().completions.create(prompt=["Hi", [5, 6, 7]], n=3, echo=True, **ALL)  # type: ignore[list-item]
    decoded = server.engine.tokenizer.decode([5, 6, 7])
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert [choice.text for choice in answer.choices] == [
        *("Hi" + text for text in ANSWERS),
        *(decoded + text for text in ANSWERS),
    ]
    assert answer.usage is not None and answer.usage.prompt_tokens == 3 + 3


def test_stop_string_is_cut_and_named(server: RunningServer) -> None:
    answer = server.openai().completions.create(prompt="Hi", stop=["wör"], **ALL)
    assert answer.choices[0].text == "Hello, "
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].stop_reason == "wör"  # type: ignore[attr-defined]
    server.wait_idle()
    stream = server.openai().completions.create(prompt="Hi", stop="wör", stream=True, **ALL)
    assert "".join(chunk.choices[0].text for chunk in stream) == "Hello, "


def test_echo_of_a_chat(server: RunningServer) -> None:
    messages = [*HI, {"role": "assistant", "content": "Well. "}]
    extra = {"echo": True, "continue_final_message": True}
    client = server.openai()
    answer = client.chat.completions.create(model="fake-model", messages=messages, extra_body=extra)
    assert answer.choices[0].message.content == "Well. " + ANSWERS[0]
    assert answer.usage is not None
    stream = client.chat.completions.create(model="fake-model", messages=messages, extra_body=extra, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "Well. " + ANSWERS[0]


def test_text_parts_and_harmless_fields(server: RunningServer) -> None:
    answer = server.openai().chat.completions.create(
        model="fake-model",
        messages=[{"role": "user", "content": [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]}],
        user="me",
        metadata={"a": "b"},
        store=False,
        service_tier="auto",
        parallel_tool_calls=True,
        tools=[],
        tool_choice="none",
        response_format={"type": "text"},
        reasoning_effort="low",
        seed=5,
    )
    assert answer.choices[0].message.content == ANSWERS[0]


def test_error_before_a_stream_begins_has_a_status(server: RunningServer) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        server.openai().completions.create(model="fake-model", prompt=["ok", "x" * 300], stream=True)
    assert caught.value.code == "context_length_exceeded"


def test_engine_failure(server: RunningServer) -> None:
    client = server.openai()
    with pytest.raises(openai.InternalServerError, match="not finite"):
        client.completions.create(prompt="FAIL", **ALL)
    received = []
    with pytest.raises(openai.APIError, match="not finite"):
        for chunk in client.completions.create(prompt="FAIL", stream=True, **ALL):
            received.append(chunk.choices[0].text)
    assert "".join(received) == "Hel"
    assert client.completions.create(prompt="Hi", **ALL).choices[0].text == ANSWERS[0]


async def test_async_clients_at_once(server: RunningServer) -> None:
    async with server.async_openai() as client:

        async def streamed() -> str:
            stream = await client.chat.completions.create(model="alias", messages=HI, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        async def whole() -> str:
            answer = await client.completions.create(prompt="Hi", **ALL)
            return answer.choices[0].text

        results = await asyncio.gather(*(call() for call in (streamed, whole) * 10))
    assert results == [ANSWERS[0]] * 20


async def test_raw_stream_ends_with_done(server: RunningServer) -> None:
    body = {"model": "fake-model", "messages": HI, "stream": True}
    with server.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in answer.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
