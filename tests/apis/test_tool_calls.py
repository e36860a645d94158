"""Tools, calls and reasoning through the official client, streamed and whole, however the tokens come."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from core_config.served.server_config import ServerConfig
from core_formats.answers.settings import AnswerSettings
from core_formats.server_limits import ServerLimits
from tests.apis.conftest import RunningServer, run_server
from tests.apis.fake_engine import TEMPLATE, make_tokenizer
from tests.apis.scripted_engine import ScriptedClient

# ChatML, with tools, calls, results and reasoning as Qwen's templates write them.
QWEN = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}<tool_call> {name, arguments} "
    "</tool_call><|im_end|>\n{% endif %}{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.reasoning_content %}{{ '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{% if m.content or not loop.first %}{{ '\n' }}{% endif %}"
    '{{ \'<tool_call>\n{"name": "\' + c.function.name + \'", "arguments": \' }}'
    "{{ c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}"
    "{{ '}\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)
MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
PATCH: dict[str, Any] = {"type": "custom", "custom": {"name": "patch", "description": "Edits."}}
HI: list[Any] = [{"role": "user", "content": "Hi"}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bonn"}}\n</tool_call>'
THOUGHT = "<think>\nHm, wait.\n</think>\n\n"


@pytest.fixture(scope="module", params=["markers are special tokens", "markers are text"])
def qwen(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    special = MARKERS if "special" in request.param else ()
    config = ServerConfig(uvicorn_log_level="warning", limits=ServerLimits(max_tools=8, max_tools_size=4096))
    tokenizer = make_tokenizer(QWEN, special)
    with run_server(config, tokenizer=tokenizer, client=ScriptedClient, max_model_len=32768) as running:
        yield running


def script(server: RunningServer, text: str, chunk: int = 1) -> None:
    assert isinstance(server.fake, ScriptedClient)
    server.fake.script, server.fake.chunk = text, chunk


def last_prompt(server: RunningServer) -> str:
    assert isinstance(server.fake, ScriptedClient)
    return server.fake.tokenizer.decode(server.fake.seen[-1].prompt_token_ids, skip_special_tokens=False)


def ask(server: RunningServer, **options: Any) -> Any:
    given = {"model": "fake-model", "messages": HI, **options}
    return server.client.chat.completions.create(**given)


def joined(stream: Any) -> dict[str, Any]:
    """The message that the deltas of a stream make, with its finish reason."""
    message: dict[str, Any] = {"content": "", "reasoning": "", "calls": {}, "finish": None}
    for chunk in stream:
        for choice in chunk.choices:
            delta = choice.delta
            message["content"] += delta.content or ""
            message["reasoning"] += getattr(delta, "reasoning", None) or ""
            assert getattr(delta, "reasoning", None) == getattr(delta, "reasoning_content", None)
            for part in delta.tool_calls or []:
                join_call(message["calls"], part)
            message["finish"] = choice.finish_reason or message["finish"]
    return message


def join_call(calls: dict[int, Any], part: Any) -> None:
    if part.index not in calls:
        assert part.id and part.type == "function" and part.function.name
        calls[part.index] = {"id": part.id, "name": part.function.name, "arguments": part.function.arguments}
        return
    assert part.id is None and part.type is None
    if part.function is not None:
        assert part.function.name is None
        calls[part.index]["arguments"] += part.function.arguments


def stripped(calls: list[Any]) -> list[tuple[str, Any]]:
    return [(call["name"], json.loads(call["arguments"])) for call in calls]


CASES = {
    "one call": (CALL, None, "", [("weather", {"city": "Köln"})]),
    "two calls": (f"{CALL}\n{OTHER}", None, "", [("weather", {"city": "Köln"}), ("weather", {"city": "Bonn"})]),
    "text before": (f"I look.\n{CALL}", "I look.", "", [("weather", {"city": "Köln"})]),
    "reasoning": (THOUGHT + "Sunny.", "Sunny.", "Hm, wait.", []),
    "reasoning and a call": (THOUGHT + CALL, None, "Hm, wait.", [("weather", {"city": "Köln"})]),
    "only text": ("Sunny. <tool", "Sunny. <tool", "", []),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("chunk", [1, 5, 1000])
def test_answers(qwen: RunningServer, name: str, chunk: int) -> None:
    text, content, reasoning, calls = CASES[name]
    script(qwen, text, chunk)
    answer = ask(qwen, tools=[WEATHER])
    message = answer.choices[0].message
    assert message.content == content
    assert getattr(message, "reasoning", "") == getattr(message, "reasoning_content", "") == reasoning
    whole = [json.loads(call.model_dump_json())["function"] for call in message.tool_calls or []]
    assert stripped(whole) == calls
    assert answer.choices[0].finish_reason == ("tool_calls" if calls else "stop")
    streamed = joined(ask(qwen, tools=[WEATHER], stream=True))
    assert (streamed["content"] or None, streamed["reasoning"]) == (content or None, reasoning)
    assert stripped(list(streamed["calls"].values())) == calls
    assert streamed["finish"] == answer.choices[0].finish_reason
    assert len({call["id"] for call in streamed["calls"].values()}) == len(calls)


def test_without_tools_markers_of_calls_are_text(qwen: RunningServer) -> None:
    script(qwen, "Write <tool" + "_call>.")
    assert ask(qwen).choices[0].message.tool_calls is None


def test_a_call_that_is_cut(qwen: RunningServer) -> None:
    script(qwen, CALL)
    for chunk in (1, 1000):
        script(qwen, CALL, chunk)
        size = len(qwen.engine.tokenizer.encode(CALL, add_special_tokens=False))
        limit = size - (8 if "<tool_call>" in qwen.engine.tokenizer.special_texts else 20)
        answer = ask(qwen, tools=[WEATHER], max_tokens=limit)
        assert answer.choices[0].finish_reason == "length"
        call = answer.choices[0].message.tool_calls[0]
        assert call.function.name == "weather" and call.function.arguments.startswith('{"city": "K')
        assert call.incomplete
        parts = list(ask(qwen, tools=[WEATHER], max_tokens=limit, stream=True))
        assert parts[-1].choices[0].finish_reason == "length"
        assert parts[-1].choices[0].delta.tool_calls[0].incomplete


def test_usage_counts_reasoning(qwen: RunningServer) -> None:
    tokenizer = qwen.engine.tokenizer
    expected = len(tokenizer.encode("Hm, wait.", add_special_tokens=False))
    for chunk in (1, 7, 1000):
        script(qwen, THOUGHT + "Sunny.", chunk)
        for include in (True, False):
            extra = {"include_reasoning": include}
            answer = ask(qwen, extra_body=extra)
            assert answer.usage.completion_tokens_details.reasoning_tokens == expected
            assert hasattr(answer.choices[0].message, "reasoning") is include
            chunks = list(ask(qwen, extra_body=extra, stream=True, stream_options={"include_usage": True}))
            assert chunks[-1].usage.completion_tokens_details.reasoning_tokens == expected
            assert bool(joined(chunks[:-1])["reasoning"]) is include


def test_every_token_has_its_logprob(qwen: RunningServer) -> None:
    text = THOUGHT + CALL
    count = len(qwen.engine.tokenizer.encode(text, add_special_tokens=False)) + 1
    for chunk in (1, 4):
        script(qwen, text, chunk)
        answer = ask(qwen, tools=[WEATHER], logprobs=True, top_logprobs=2)
        assert len(answer.choices[0].logprobs.content) == count
        chunks = ask(qwen, tools=[WEATHER], logprobs=True, stream=True)
        told = [one for part in chunks for choice in part.choices if choice.logprobs for one in choice.logprobs.content]
        assert len(told) == count


def test_several_choices(qwen: RunningServer) -> None:
    script(qwen, CALL, 3)
    answer = ask(qwen, tools=[WEATHER], n=3)
    assert [choice.message.tool_calls[0].function.name for choice in answer.choices] == ["weather"] * 3
    assert len({choice.message.tool_calls[0].id for choice in answer.choices}) == 3


def test_the_next_prompt_begins_with_what_the_model_wrote(qwen: RunningServer) -> None:
    text = f"{THOUGHT}I look.\n{CALL}".replace('{"city": ', '{"city":  ')
    script(qwen, text)
    answer = ask(qwen, tools=[WEATHER])
    before = last_prompt(qwen)
    message = answer.choices[0].message.model_dump(exclude_none=True)
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "Sunny."}
    ask(qwen, tools=[WEATHER], messages=[*HI, message, result])
    assert last_prompt(qwen).startswith(before + text + "<|im_end|>\n<|im_start|>tool\nSunny.<|im_end|>")


def test_custom_tools(qwen: RunningServer) -> None:
    call = '<tool_call>\n{"name": "patch", "arguments": {"input": "*** Begin\\n+a"}}\n</tool_call>'
    for chunk in (1, 1000):
        script(qwen, call, chunk)
        answer = ask(qwen, tools=[WEATHER, PATCH])
        made = answer.choices[0].message.tool_calls[0]
        assert (made.type, made.custom.name, made.custom.input) == ("custom", "patch", "*** Begin\n+a")
        parts = [
            part for one in ask(qwen, tools=[PATCH], stream=True) for part in one.choices[0].delta.tool_calls or []
        ]
        assert parts[0].type == "custom" and parts[0].custom["name"] == "patch"
        assert "".join(part.custom["input"] for part in parts) == "*** Begin\n+a"
    history = [*HI, answer.choices[0].message.model_dump(exclude_none=True)]
    ask(qwen, tools=[PATCH], messages=[*history, {"role": "tool", "tool_call_id": made.id, "content": "done"}])
    assert call in last_prompt(qwen)


def test_continuing_reasoning(qwen: RunningServer) -> None:
    begun = [*HI, {"role": "assistant", "content": "", "reasoning": "Hm,"}]
    script(qwen, " wait.\n</think>\n\nSunny.")
    extra = {"continue_final_message": True, "echo": True}
    message = ask(qwen, messages=begun, extra_body=extra).choices[0].message
    assert last_prompt(qwen).endswith("<think>\nHm,")
    assert (message.reasoning, message.content) == ("Hm, wait.", "Sunny.")
    streamed = joined(ask(qwen, messages=begun, extra_body=extra, stream=True))
    assert (streamed["reasoning"], streamed["content"]) == ("Hm, wait.", "Sunny.")


def test_continuing_text(qwen: RunningServer) -> None:
    begun = [*HI, {"role": "assistant", "content": "It is", "reasoning": "Hm."}]
    script(qwen, f" warm.\n{CALL}")
    message = ask(qwen, messages=begun, tools=[WEATHER], extra_body={"continue_final_message": True}).choices[0].message
    assert last_prompt(qwen).endswith("<think>\nHm.\n</think>\n\nIt is")
    assert message.content == " warm." and len(message.tool_calls) == 1


def test_large_bodies_are_served_alike(qwen: RunningServer) -> None:
    script(qwen, THOUGHT + CALL, 7)
    messages = [{"role": "user", "content": [{"type": "text", "text": "x"}]}] * 500
    message = ask(qwen, messages=messages, tools=[WEATHER, PATCH]).choices[0].message
    assert (message.reasoning, message.tool_calls[0].function.name) == ("Hm, wait.", "weather")


def test_the_model_card_tells_the_format(qwen: RunningServer) -> None:
    assert qwen.openai().models.list().data[0].response_format.startswith("hermes (the chat template has")


def test_effort_switches_reasoning_off(qwen: RunningServer) -> None:
    script(qwen, "Sunny.")
    ask(qwen, reasoning_effort="none")
    assert last_prompt(qwen).endswith("<think>\n\n</think>\n\n")
    ask(qwen, reasoning_effort="high")
    assert last_prompt(qwen).endswith("assistant\n")


def test_tools_that_may_not_be_called_are_not_shown(qwen: RunningServer) -> None:
    script(qwen, CALL)
    answer = ask(qwen, tools=[WEATHER], tool_choice="none")
    assert answer.choices[0].message.tool_calls is None
    assert "weather" not in last_prompt(qwen)


def function(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {**WEATHER["function"], **fields}}


REFUSED = [
    ({"tools": ["weather"]}, "tools", "None"),
    ({"tools": [{"type": "web_search"}]}, "tools", "'web_search'"),
    ({"tools": [{"type": "code_interpreter", "container": {}}]}, "tools", "'code_interpreter'"),
    ({"tools": [{"type": "function", "name": "weather"}]}, "tools", "tools[0].function"),
    ({"tools": [function(name="a b")]}, "tools", "'a b'"),
    ({"tools": [function(name=None)]}, "tools", "name"),
    ({"tools": [function(name="x" * 129)]}, "tools", "128"),
    ({"tools": [function(description=5)]}, "tools", "description"),
    ({"tools": [function(strict="yes")]}, "tools", "strict"),
    ({"tools": [function(parameters=[])]}, "tools", "object"),
    ({"tools": [function(parameters={"type": "string"})]}, "tools", "object"),
    ({"tools": [function(parameters={"type": "object", "properties": []})]}, "tools", "object"),
    ({"tools": [WEATHER, WEATHER]}, "tools", "another tool"),
    ({"tools": [function(name=f"f{i}") for i in range(9)]}, "tools", "--max-tools"),
    ({"tools": [function(description="x" * 5000)]}, "tools", "--max-tools-size"),
    ({"tools": [{"type": "custom", "custom": {"name": "p", "format": {"type": "bnf"}}}]}, "tools", "format"),
    (
        {
            "tools": [
                {"type": "custom", "custom": {"name": "p", "format": {"type": "grammar", "grammar": {"syntax": "x"}}}}
            ]
        },
        "tools",
        "'lark'",
    ),
    ({"tool_choice": {"type": "function", "function": {"name": "weathr"}}}, "tool_choice", "'weather'"),
    ({"tool_choice": {"type": "function"}}, "tool_choice", "name"),
    ({"tool_choice": "weather"}, "tool_choice", "'required'"),
    ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice", "mode"),
    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}}, "tool_choice", "list"),
    ({"messages": [{"role": "assistant", "tool_calls": {}}]}, "messages", "tool_calls"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]}, "messages", "name"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}]}, "messages", "arguments"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"type": "mcp"}]}]}, "messages", "'mcp'"),
    ({"messages": [{"role": "assistant", "function_call": {"name": "f"}}]}, "messages", "tool_calls"),
    ({"messages": [{"role": "function", "name": "f", "content": "x"}]}, "messages", "'tool'"),
    ({"messages": [{"role": "assistant", "reasoning": 5}]}, "messages", "reasoning"),
    ({"functions": [{"name": "f"}]}, "functions", "write tools"),
    ({"function_call": "auto"}, "function_call", "tool_choice"),
    ({"reasoning_effort": "extreme"}, "reasoning_effort", "medium"),
    ({"thinking_token_budget": -2}, "thinking_token_budget", "-2"),
]


@pytest.mark.parametrize(("body", "param", "words"), REFUSED)
def test_what_is_refused(qwen: RunningServer, body: dict[str, Any], param: str, words: str) -> None:
    answer = qwen.http.post("/v1/chat/completions", json={"messages": HI, "tools": [WEATHER], **body})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param and words in error["message"], error


def test_what_the_server_must_know() -> None:
    none = ServerConfig(uvicorn_log_level="warning", answers=AnswerSettings(tool_call_parser="none"))
    asked = ServerConfig(uvicorn_log_level="warning", answers=AnswerSettings(enable_auto_tool_choice=False))
    for config, template, words in (
        (none, TEMPLATE, "does not show tools"),
        (none, QWEN, "--tool-call-parser"),
        (asked, QWEN, "--no-enable-auto-tool-choice"),
    ):
        with run_server(config, tokenizer=make_tokenizer(template), client=ScriptedClient) as server:
            script(server, "Hello")
            with pytest.raises(openai.BadRequestError, match=words):
                ask(server, tools=[WEATHER])
            assert ask(server, tools=[WEATHER], tool_choice="none").choices[0].message.content == "Hello"
