"""Anthropic's official client against the server: its types are the oracle for every answer and event."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import TypeAdapter

from core_apis.anthropic.answer_blocks import Blocks, arguments_object, whole_blocks
from core_apis.anthropic.signature import signature
from core_apis.protocol.anthropic_answer import AnswerText
from core_config.served.server_config import ServerConfig
from core_formats.answers.events import CallEnd, CallStart, ReasoningDelta, TextDelta
from tests.apis.conftest import RunningServer, run_server
from tests.apis.fake_engine import ANSWERS, make_tokenizer
from tests.apis.scripted_engine import ConversingClient

if TYPE_CHECKING:
    from anthropic.types import Message  # importing it takes ten seconds: the processes that run other files need not

TEMPLATE = (
    "{% for t in tools or [] %}{{ t | tojson }}{{ '\\n' }}{% endfor %}"
    "{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}{{ '<think>\\n' + m.reasoning_content }}"
    "{{ '\\n</think>\\n\\n' }}{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ '<tool_call>\\n{\"name\": \"' + c.function.name + '\", \"arguments\": ' + c.function.arguments + '}\\n</tool_call>' }}"
    "{% endfor %}{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
WEATHER = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln", "days": [1, 2]}}\n</tool_call>'
SCRIPT = [
    ("ASK-THINK", "<think>\nLet me see.\n</think>\n\nIt is 42."),
    ("ASK-CALL", WEATHER),
    ("ASK-ALL", f"<think>\nHm.\n</think>\n\nI will look.{WEATHER}\n{WEATHER}"),
    ("ASK-CUT", '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln", "unit": "celsius"}}\n</tool_call>'),
]
ASKS = ["ASK-THINK", "ASK-CALL", "ASK-ALL", "ASK-CUT", "Hi"]
TOOL: Any = {"name": "weather", "description": "Of a city.", "input_schema": {"type": "object"}}
UNREADABLE: Any = {"type": "json_schema", "schema": {"type": "string", "pattern": "(a"}}


@functools.cache
def event_type() -> TypeAdapter[Any]:
    """What the client reads as an event."""
    from anthropic.types import RawMessageStreamEvent

    return TypeAdapter(RawMessageStreamEvent)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    config = ServerConfig(uvicorn_log_level="warning")
    client = functools.partial(ConversingClient, rows=SCRIPT)
    with run_server(config, client=client, tokenizer=make_tokenizer(TEMPLATE), max_model_len=2048) as running:
        yield running


def body(ask: str, **more: Any) -> dict[str, Any]:
    asked = {"model": "fake-model", "max_tokens": 500, "messages": [{"role": "user", "content": ask}], **more}
    return asked | ({"tools": [TOOL]} if ask.startswith("ASK") else {})


def events_of(server: RunningServer, request: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """(name, data) of each event, as they come over the network."""
    found = []
    with server.http.stream("POST", "/v1/messages", json={**request, "stream": True}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream"), answer.read()
        text = "".join(answer.iter_text())
    for block in text.split("\n\n"):
        if block:
            name, data = block.split("\n")
            found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def told(message: Message) -> dict[str, Any]:
    """What a message says, without its ids and without fields that are not set."""
    shown = message.to_dict(exclude_none=True)
    for part in (shown, *shown["content"]):
        part.pop("id", None)
    return shown


@pytest.mark.parametrize("ask", ASKS)
def test_the_stream_makes_the_same_message_as_the_whole(server: RunningServer, ask: str) -> None:
    client = server.anthropic()
    whole = client.messages.create(**body(ask))
    with client.messages.stream(**body(ask)) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_message()
    assert told(streamed) == told(whole)


@pytest.mark.parametrize("ask", ASKS)
def test_events_are_valid_and_in_order(server: RunningServer, ask: str) -> None:
    events = events_of(server, body(ask))
    names = [name for name, _ in events]
    assert all(data["type"] == name for name, data in events)
    assert names[:3] == ["message_start", "content_block_start", "ping"]
    assert names[-2:] == ["message_delta", "message_stop"]
    opened: int | None = None
    next_index = 0
    for name, data in events:
        if name == "ping":
            continue
        assert event_type().validate_python(data).to_dict() == data
        if name == "content_block_start":
            assert opened is None and data["index"] == next_index
            opened, next_index = next_index, next_index + 1
        elif name == "content_block_delta":
            assert data["index"] == opened
        elif name == "content_block_stop":
            assert data["index"] == opened
            opened = None
        else:
            assert opened is None


@pytest.mark.parametrize(
    ("ask", "kinds", "reason"),
    [
        ("Hi", ["text"], "end_turn"),
        ("ASK-THINK", ["thinking", "text"], "end_turn"),
        ("ASK-CALL", ["tool_use"], "tool_use"),
        ("ASK-ALL", ["thinking", "text", "tool_use", "tool_use"], "tool_use"),
    ],
)
def test_blocks_and_reasons(server: RunningServer, ask: str, kinds: list[str], reason: str) -> None:
    answer = server.anthropic().messages.create(**body(ask))
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", "fake-model")
    assert answer.id.startswith("msg_")
    assert [block.type for block in answer.content] == kinds
    assert (answer.stop_reason, answer.stop_sequence) == (reason, None)
    for block in answer.content:
        if block.type == "tool_use":
            assert (block.name, block.input) == ("weather", {"city": "Köln", "days": [1, 2]})
        if block.type == "thinking":
            assert block.signature == signature(block.thinking) != signature("")
    ids = [block.id for block in answer.content if block.type == "tool_use"]
    assert len(set(ids)) == len(ids)


def test_white_space_is_a_block_only_with_text() -> None:
    blocks = Blocks(omits_thinking=False)
    call = [CallStart(0, "c", "weather"), CallEnd(0)]
    answer = [
        ReasoningDelta("Hm."),
        TextDelta("\n"),
        TextDelta(" "),
        TextDelta("a"),
        TextDelta("\n"),
        *call,
        TextDelta("\n"),
        *call,
    ]
    events = [event for given in answer for event in blocks.add(given)]
    made = whole_blocks([*events, *blocks.close()])
    assert [type(block).__name__ for block in made] == [
        "AnswerThinking",
        "AnswerText",
        "AnswerToolUse",
        "AnswerToolUse",
    ]
    assert made[1] == AnswerText("\n a\n")


def test_tools_are_counted(server: RunningServer) -> None:
    client = server.anthropic()
    asked = body("ASK-CALL")
    del asked["max_tokens"]
    counted = client.messages.count_tokens(**asked).input_tokens
    used = client.messages.create(**body("ASK-CALL")).usage
    assert counted == used.input_tokens + (used.cache_read_input_tokens or 0)
    assert counted > client.messages.count_tokens(model="fake-model", messages=asked["messages"]).input_tokens


def test_a_turn_of_calls_goes_on_from_the_same_prompt(server: RunningServer) -> None:
    client = server.anthropic()
    first = client.messages.create(**body("ASK-ALL"))
    uses = [block for block in first.content if block.type == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": use.id, "content": "sunny"} for use in uses]
    turns: list[Any] = [
        {"role": "user", "content": "ASK-ALL"},
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": results},
    ]
    prompts: list[str] = []
    for messages in (turns[:1], turns):
        prepared = server.preparer.here.run(
            "messages",
            json.dumps(body("ASK-ALL") | {"messages": messages}, default=lambda block: block.to_dict()).encode(),
        )
        prompts.append(prepared.chat.prompts[0].text or "")
    written = f"<think>\nHm.\n</think>\n\nI will look.{WEATHER}{WEATHER}"
    assert prompts[1].startswith(prompts[0] + written)


def test_usage_counts_the_prompt_once(server: RunningServer) -> None:
    client = server.anthropic()
    counted = client.messages.count_tokens(model="fake-model", messages=[{"role": "user", "content": "Hi"}])
    answer = client.messages.create(**body("Hi"))
    used = answer.usage
    assert (used.cache_read_input_tokens, used.cache_creation_input_tokens) == (2, 0)
    assert used.input_tokens + 2 == counted.input_tokens == len("<user>Hi\n<assistant>")
    assert used.output_tokens == len(ANSWERS[0].encode()) + 1
    assert used.output_tokens_details and used.output_tokens_details.thinking_tokens == 0
    thought = client.messages.create(**body("ASK-THINK")).usage
    assert thought.output_tokens_details and 0 < thought.output_tokens_details.thinking_tokens < thought.output_tokens
    started = dict(events_of(server, body("Hi")))
    assert started["message_start"]["message"]["usage"]["input_tokens"] == used.input_tokens
    assert started["message_delta"]["usage"] == used.to_dict()


def test_limits_say_which(server: RunningServer) -> None:
    client = server.anthropic()
    cut = client.messages.create(**body("Hi", max_tokens=4))
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 4)
    stopped = client.messages.create(**body("Hi", stop_sequences=["wör", "xyz"]))
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "wör")
    assert stopped.content[0].text == "Hello, "
    roomless = client.messages.create(**body("x" * 2020, max_tokens=20_000))
    assert roomless.stop_reason == "model_context_window_exceeded"


def test_a_call_that_is_cut_has_what_is_certain(server: RunningServer) -> None:
    answer = server.anthropic().messages.create(**body("ASK-CUT", max_tokens=70))
    assert answer.stop_reason == "max_tokens"
    assert answer.content[0].input == {"city": "Köln"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", {}),
        ('{"a": [1, {"b": "x"}]}', {"a": [1, {"b": "x"}]}),
        ('{"a": [1, {"b": "x', {"a": [1, {}]}),
        ("[1]", {"unreadable_arguments": "[1]"}),
        ("no", {"unreadable_arguments": "no"}),
        ('{"a": 1} {', {"a": 1}),
    ],
)
def test_arguments_are_an_object_whatever_the_model_wrote(text: str, value: dict[str, Any]) -> None:
    assert arguments_object(text) == value


def test_thinking_may_be_left_out(server: RunningServer) -> None:
    omitted = {"type": "adaptive", "display": "omitted"}
    thinking, text = server.anthropic().messages.create(**body("ASK-THINK", thinking=omitted)).content
    assert (thinking.thinking, thinking.signature, text.text) == ("", signature(""), "It is 42.")


@pytest.mark.parametrize(
    ("change", "status", "kind", "said"),
    [
        ({"model": "claude-x"}, 404, "not_found_error", "'claude-x' does not exist"),
        ({"messages": "x"}, 400, "invalid_request_error", "messages"),
        ({"messages": [{"role": "user", "content": "x" * 3000}]}, 400, "invalid_request_error", "Prompt is too long."),
        ({"extra_body": {"temperature": -1.0}}, 400, "invalid_request_error", "temperature"),
        ({"metadata": {"user_id": "x" * 9000}}, 400, "invalid_request_error", "metadata.user_id has 9000 characters"),
        ({"stop_sequences": [""]}, 400, "invalid_request_error", "stop_sequences holds an empty string"),
        ({"stop_sequences": ["x"] * 9000}, 400, "invalid_request_error", "stop_sequences has 9000 entries"),
        ({"output_config": {"effort": "huge"}}, 400, "invalid_request_error", "output_config.effort is 'huge'"),
        ({"output_config": {"format": UNREADABLE}}, 400, "invalid_request_error", "output_config.format cannot be"),
        ({"extra_body": {"output_format": UNREADABLE}}, 400, "invalid_request_error", "output_config.format cannot be"),
        (
            {"tools": [{**TOOL, "input_schema": {"type": "list"}}]},
            400,
            "invalid_request_error",
            "tools[0].input_schema",
        ),
        ({"tools": [{**TOOL, "name": "a b"}]}, 400, "invalid_request_error", "tools[0].name is 'a b'"),
        ({"tools": [TOOL, TOOL]}, 400, "invalid_request_error", "tools[1] has the name 'weather' of another tool"),
        ({"tools": [TOOL] * 2000}, 400, "invalid_request_error", "tools has 2000 entries"),
        ({"tools": {"weather": TOOL}}, 400, "invalid_request_error", "$.tools"),
        ({"system": "x" * 34_000_000}, 413, "request_too_large", "--max-body-size"),
    ],
)
def test_errors_have_their_shape(
    server: RunningServer, change: dict[str, Any], status: int, kind: str, said: str
) -> None:
    from anthropic import APIStatusError

    with pytest.raises(APIStatusError) as caught:
        server.anthropic().messages.create(**body("Hi") | change)
    error = caught.value
    assert error.status_code == status
    assert isinstance(error.body, dict)
    assert set(error.body) == {"type", "error"} and set(error.body["error"]) == {"type", "message"}
    assert (error.body["type"], error.body["error"]["type"]) == ("error", kind)
    assert said in error.body["error"]["message"]
    assert error.request_id


def test_errors_of_paths_and_methods_have_their_shape(server: RunningServer) -> None:
    for method, path, status in (("GET", "/v1/messages", 405), ("POST", "/v1/messages/batches", 404)):
        answer = server.http.request(method, path, json={})
        assert (answer.status_code, answer.json()["type"]) == (status, "error")
    assert "error" not in server.http.get("/v1/none").json().get("type", "")


def test_errors_before_a_request_is_read_have_their_shape(server: RunningServer) -> None:
    answer = server.http.post("/v1/messages", json=body("Hi"), headers={"x-long": "x" * 100_000})
    assert (answer.status_code, answer.json()["type"]) == (431, "error")
    assert "--max-header-size" in answer.json()["error"]["message"] and answer.headers["request-id"]
    other = server.http.post("/v1/responses", json={}, headers={"x-long": "x" * 100_000}).json()
    assert other["error"]["code"] == "headers_too_large"


def test_a_stream_that_fails_ends_with_an_error(server: RunningServer) -> None:
    from anthropic import APIStatusError

    events = events_of(server, body("FAIL"))
    name, data = events[-1]
    assert (name, data["type"], data["error"]["type"]) == ("error", "error", "api_error")
    with (
        pytest.raises(APIStatusError, match="not finite"),
        server.anthropic().messages.stream(**body("FAIL")) as stream,
    ):
        stream.get_final_message()


def test_request_ids(server: RunningServer) -> None:
    client = server.anthropic()
    given = client.messages.with_raw_response.create(**body("Hi"), extra_headers={"x-request-id": "mine"})
    assert (given.headers["request-id"], given.parse().id) == ("mine", "msg_mine")
    counted = client.messages.count_tokens(model="fake-model", messages=[{"role": "user", "content": "Hi"}])
    assert counted._request_id


def test_keys_in_either_header() -> None:
    from anthropic import AuthenticationError

    with run_server(ServerConfig(api_keys=("k", "m"), uvicorn_log_level="warning")) as running:
        for options in ({"api_key": "k"}, {"api_key": None, "auth_token": "m"}):
            assert running.anthropic(**options).messages.create(**body("Hi")).content
        with pytest.raises(AuthenticationError) as caught:
            running.anthropic(api_key="wrong").messages.create(**body("Hi"))
        assert isinstance(caught.value.body, dict)
        assert caught.value.body["error"]["type"] == "authentication_error"
        assert running.http.post("/v1/messages", json=body("Hi")).status_code == 401
        assert running.http.get("/v1/models", headers={"x-api-key": "k"}).status_code == 200
