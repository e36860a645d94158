"""What answers are held to, from end to end: a real server, a real small model, the official clients, whole and streamed.

The model is too small to call tools of its own accord, and its template knows none: it has to be held to everything. Every
answer is greedy, so that a stream has to add up to the whole answer.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import jsonschema
import pytest

from tests.apis.test_real_server import Server, client_of, serving
from tests.apis.test_tool_calls import QWEN, joined

pytest.importorskip("xgrammar")
pytestmark = pytest.mark.slow

# Where reasoning is asked for, the prompt begins it.
THINKING = QWEN.removesuffix("{% endif %}") + (
    "{% if enable_thinking is defined and enable_thinking %}{{ '<think>\n' }}{% endif %}{% endif %}"
)
FORECAST: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 2, "maxLength": 16, "pattern": "^[A-Z][a-z]*$"},
        "unit": {"enum": ["celsius", "kelvin"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 5},
    },
    "required": ["city", "unit", "days"],
    "additionalProperties": False,
}
LABELS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "labels": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 3},
        "urgent": {"type": "boolean"},
    },
    "required": ["labels", "urgent"],
    "additionalProperties": False,
}
SCHEMAS = {"forecast": FORECAST, "label": LABELS}
QUESTION = "What will the weather in Paris be like in the next days?"
MODEL = "SmolLM2-135M-Instruct"
WISH = '\n<tool_call>\n{"name": "label", "arguments": {"labels": ["red"], "urgent": true}}\n</tool_call>'
NUM_THOUGHTS = 12
BROKEN: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(a"}}, "required": ["a"]}

Body = dict[str, Any]


@dataclass
class Answer:
    """An answer in the words of no API.

    calls: (tool, arguments as JSON).
    ended: `stop`, `calls` or `cut`.
    marked: whether a call is told to be cut.
    """

    text: str
    calls: list[tuple[str, str]]
    ended: str
    reasoning: str = ""
    marked: bool = False


def chat_tool(name: str, schema: Any, **more: Any) -> Body:
    return {"type": "function", "function": {"name": name, "parameters": schema, **more}}


def response_tool(name: str, schema: Any, **more: Any) -> Body:
    return {"type": "function", "name": name, "parameters": schema, "strict": False, **more}


def messages_tool(name: str, schema: Any, **more: Any) -> Body:
    return {"name": name, "input_schema": schema, **more}


MAKERS: Mapping[str, Callable[..., Body]] = {"chat": chat_tool, "responses": response_tool, "messages": messages_tool}


def tools(api: str, **more: Any) -> list[Body]:
    return [MAKERS[api](name, schema, **more) for name, schema in SCHEMAS.items()]


NAMED: Mapping[str, Body] = {
    "chat": {"type": "function", "function": {"name": "label"}},
    "responses": {"type": "function", "name": "label"},
    "messages": {"type": "tool", "name": "label"},
}
REQUIRED: Mapping[str, Any] = {"chat": "required", "responses": "required", "messages": {"type": "any"}}
ONE_CALL: Mapping[str, Body] = {
    "chat": {"tool_choice": "required", "parallel_tool_calls": False},
    "responses": {"tool_choice": "required", "parallel_tool_calls": False},
    "messages": {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
}
ONE_AT_MOST: Mapping[str, Body] = {
    "chat": {"parallel_tool_calls": False},
    "responses": {"parallel_tool_calls": False},
    "messages": {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
}
FORM: Mapping[str, Body] = {
    "chat": {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": FORECAST}}},
    "responses": {"text": {"format": {"type": "json_schema", "name": "x", "schema": FORECAST}}},
    "messages": {"output_config": {"format": {"type": "json_schema", "schema": FORECAST}}},
}
OLDER_FORM: Body = {"output_format": FORM["messages"]["output_config"]["format"]}
THOUGHTS: Mapping[str, Body] = {
    "chat": {"reasoning_effort": "low", "thinking_token_budget": NUM_THOUGHTS},
    "messages": {"output_config": {"effort": "low"}, "thinking": {"type": "enabled", "budget_tokens": NUM_THOUGHTS}},
}
LIMITS = {"chat": "max_tokens", "responses": "max_output_tokens", "messages": "max_tokens"}
UNKNOWN_TO_CLIENTS = ("output_format", "temperature", "thinking_token_budget")
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}


def asked(api: str, limit: int = 200, question: str = QUESTION, **fields: Any) -> Body:
    """The body of a request."""
    body: Body = {"model": MODEL, LIMITS[api]: limit, "temperature": 0, **fields}
    if api == "responses":
        return {"input": question, **body}
    return {"messages": [{"role": "user", "content": question}], **body}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("answers")
    template = folder / "template.jinja"
    template.write_text(THINKING)
    with serving(folder / "log", "--chat-template", str(template), "--served-model-name", MODEL) as running:
        yield running


@pytest.fixture(scope="module")
def askers(server: Server) -> Mapping[str, Callable[..., Answer]]:
    """By API: ask(body, stream)."""
    client = client_of(server)
    from anthropic import Anthropic

    messages = Anthropic(base_url=server.base, api_key="none", max_retries=0)

    def ask_chat(body: Body, stream: bool) -> Answer:
        if stream:
            return streamed_chat(client.chat.completions.create(stream=True, **body))
        return whole_chat(client.chat.completions.create(**body))

    def ask_responses(body: Body, stream: bool) -> Answer:
        if not stream:
            return response(client.responses.create(**body))
        with client.responses.stream(**body) as events:
            *_, last = events
        return response(last.response)

    def ask_messages(body: Body, stream: bool) -> Answer:
        if not stream:
            return message(messages.messages.create(**body))
        with messages.messages.stream(**body) as events:
            return message(events.get_final_message())

    return {"chat": ask_chat, "responses": ask_responses, "messages": ask_messages}


ENDS = {
    **{"stop": "stop", "tool_calls": "calls", "length": "cut"},
    **{"end_turn": "stop", "tool_use": "calls", "max_tokens": "cut"},
}


def whole_chat(answer: Any) -> Answer:
    (choice,) = answer.choices
    made = choice.message
    calls = made.tool_calls or []
    return Answer(
        made.content or "",
        [(call.function.name, call.function.arguments) for call in calls],
        ENDS[choice.finish_reason],
        getattr(made, "reasoning", ""),
        any(getattr(call, "incomplete", False) for call in calls),
    )


def streamed_chat(stream: Any) -> Answer:
    chunks = list(stream)
    made = joined(chunks)
    parts = [part for chunk in chunks for choice in chunk.choices for part in choice.delta.tool_calls or []]
    return Answer(
        made["content"],
        [(call["name"], call["arguments"]) for call in made["calls"].values()],
        ENDS[made["finish"]],
        made["reasoning"],
        any(getattr(part, "incomplete", False) for part in parts),
    )


def response(answer: Any) -> Answer:
    calls = [item for item in answer.output if item.type == "function_call"]
    ended = "cut" if answer.status == "incomplete" else "calls" if calls else "stop"
    return Answer(
        answer.output_text,
        [(call.name, call.arguments) for call in calls],
        ended,
        marked=any(call.status == "incomplete" for call in calls),
    )


def message(answer: Any) -> Answer:
    blocks = answer.content
    return Answer(
        "".join(block.text for block in blocks if block.type == "text"),
        [(block.name, json.dumps(block.input)) for block in blocks if block.type == "tool_use"],
        ENDS[answer.stop_reason],
        "".join(block.thinking for block in blocks if block.type == "thinking"),
    )


def fits(answer: Answer) -> bool:
    """Whether every call fits its tool."""
    for name, arguments in answer.calls:
        jsonschema.validate(json.loads(arguments), SCHEMAS[name])
    return bool(answer.calls)


@pytest.fixture(params=["chat", "responses", "messages"])
def api(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def ask(askers: Mapping[str, Callable[..., Answer]], api: str) -> Callable[..., Answer]:
    """The answer to a body, whole, and the same streamed."""

    def ask(**fields: Any) -> Answer:
        body = asked(api, **fields)
        body["extra_body"] = {name: body.pop(name) for name in UNKNOWN_TO_CLIENTS if name in body}
        whole = askers[api](body, stream=False)
        assert askers[api](body, stream=True) == whole
        return whole

    return ask


def test_a_call_must_come(api: str, ask: Callable[..., Answer]) -> None:
    answer = ask(tools=tools(api), tool_choice=REQUIRED[api])
    assert fits(answer) and answer.ended == "calls" and not answer.text


def test_a_certain_call_must_come(api: str, ask: Callable[..., Answer]) -> None:
    answer = ask(tools=tools(api), tool_choice=NAMED[api])
    assert fits(answer) and [name for name, _ in answer.calls] == ["label"]


def test_one_call_alone_must_come(api: str, ask: Callable[..., Answer]) -> None:
    answer = ask(tools=tools(api), **ONE_CALL[api])
    assert fits(answer) and len(answer.calls) == 1 and answer.ended == "calls"


def test_one_strict_call_may_come(api: str, ask: Callable[..., Answer]) -> None:
    """The model calls because it repeats what it has just read."""
    answer = ask(question=f"Repeat this:{WISH * 3}", tools=tools(api, strict=True), **ONE_AT_MOST[api])
    assert fits(answer) and len(answer.calls) == 1 and answer.ended == "calls"


def test_text_has_the_form_that_was_asked_for(api: str, ask: Callable[..., Answer]) -> None:
    answer = ask(**FORM[api])
    assert answer.ended == "stop" and not answer.calls
    jsonschema.validate(json.loads(answer.text), FORECAST)


@pytest.mark.parametrize("api", ["messages"], indirect=True)
def test_the_older_name_of_the_form(ask: Callable[..., Answer]) -> None:
    jsonschema.validate(json.loads(ask(**OLDER_FORM).text), FORECAST)


@pytest.mark.parametrize("api", list(THOUGHTS), indirect=True)
def test_reasoning_ends_where_its_limit_is(server: Server, api: str, ask: Callable[..., Answer]) -> None:
    answer = ask(tools=tools(api), tool_choice=NAMED[api], **THOUGHTS[api])
    assert fits(answer) and answer.ended == "calls"
    sent = {"model": MODEL, "prompt": answer.reasoning, "add_special_tokens": False}
    counted = httpx.post(f"{server.base}/tokenize", json=sent).json()["count"]
    assert 0 < counted <= NUM_THOUGHTS


def test_a_call_that_is_cut_is_marked(api: str, ask: Callable[..., Answer]) -> None:
    answer = ask(limit=26, tools=tools(api), tool_choice=NAMED[api])
    assert answer.ended == "cut" and [name for name, _ in answer.calls] == ["label"]
    assert answer.marked or api == "messages"  # which has no other mark than how the answer ended
    with pytest.raises((ValueError, jsonschema.ValidationError)):
        fits(answer)


def refused(server: Server, api: str, **fields: Any) -> str:
    """The sentence of an error of the API's shape, about tools."""
    got = httpx.post(server.base + PATHS[api], json=asked(api, **fields), timeout=60)
    told = got.json()
    assert got.status_code == 400 and told["error"]["type"] == "invalid_request_error"
    if api == "messages":
        assert told["type"] == "error" and set(told["error"]) == {"type", "message"}
    else:
        assert told["error"]["param"] == "tools" and set(told) == {"error"}
    return str(told["error"]["message"])


def test_tools_that_are_none_are_refused(server: Server, api: str) -> None:
    tool = MAKERS[api]
    many = [tool(f"tool{index}", FORECAST) for index in range(2000)]
    assert "tools has 2000 entries" in refused(server, api, tools=many)
    assert "$.tools" in refused(server, api, tools={"tool": FORECAST})
    assert "tools" in refused(server, api, tools=["forecast"])
    place = "tools[0].function" if api == "chat" else "tools[0]"
    assert f"{place}.name is 'a b'" in refused(server, api, tools=[tool("a b", FORECAST)])
    schema = "input_schema" if api == "messages" else "parameters"
    assert f"{place}.{schema} is no JSON schema" in refused(server, api, tools=[tool("a", {"type": "list"})])
    assert "tools cannot be served" in refused(server, api, tools=[tool("a", BROKEN)], tool_choice=REQUIRED[api])
    assert client_of(server).models.list().data


def test_a_grammar_takes_a_part_of_the_preparation(server: Server) -> None:
    body = asked("chat", tools=tools("chat"), tool_choice="required", explain=True)
    times = httpx.post(server.base + PATHS["chat"], json=body, timeout=60).json()["explain"]["times"]
    assert 0 <= times["grammar"] <= times["preparation"]
