"""Tools for models whose chat template shows none, and tools without descriptions."""

import json
from typing import Any

import pytest

from core.api.errors import RequestError
from core_formats.answers.settings import AnswerSettings
from core_formats.conversation_prompts import ConversationPrompts
from core_formats.selection import answer_format
from core_tokens.chat.chat_template import ChatTemplate
from tests.response_formats.answers import TOOLS, calls_of, parsed

CHATML = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
TURNS = (
    "{% for m in messages %}{% if m.role != ('user' if loop.index0 % 2 == 0 else 'assistant') %}"
    "{{ raise_exception('user and assistant in turns') }}{% endif %}{{ '<|' + m.role + '|>' + m.content + '\n' }}{% endfor %}"
)
"""A template without system messages, as some models have."""
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a {city}, {call} and {tools}.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
PATCH = {"type": "custom", "custom": {"name": "patch", "description": "Changes files."}}
CALL = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":  "Rome"}'}}
HI = {"role": "user", "content": "Hi"}


def prompts(template: str, **settings: Any) -> ConversationPrompts:
    return ConversationPrompts(ChatTemplate(template), answer_format(AnswerSettings(**settings), template, {}))


def test_tools_are_described_in_a_system_message() -> None:
    text = prompts(CHATML).render([HI], [WEATHER, PATCH])
    first, *_ = text.split("\n<|user|>Hi")
    assert first.startswith("<|system|>") and text.endswith("<|user|>Hi\n<|assistant|>")
    lines = first.partition("<tools>\n")[2].partition("\n</tools>")[0].split("\n")
    functions = [json.loads(line) for line in lines]
    assert functions[0] == WEATHER["function"]
    assert functions[1]["name"] == "patch" and functions[1]["parameters"]["required"] == ["input"]


def test_the_example_is_read_back_as_a_call() -> None:
    for name in ("generic", "mistral", "pythonic", "qwen3_coder", "glm45"):
        made = prompts(CHATML, tool_call_parser=name)
        served = answer_format(AnswerSettings(tool_call_parser=name), CHATML, {})
        text = made.render([HI], [WEATHER])
        _, _, after = text.partition("arguments:\n")
        example, _, _ = after.partition("\nThen stop")
        tools = [*TOOLS, type(TOOLS[0])("function_name", "", {"type": "object", "properties": {}})]
        assert calls_of(parsed(served.row, example, tools=tools)) == [("function_name", {"argument_name": "value"})]


def test_a_system_message_of_the_user_stays_first() -> None:
    for role, content in (("system", "Be kind."), ("developer", [{"type": "text", "text": "Be kind."}])):
        text = prompts(CHATML).render([{"role": role, "content": content}, HI], [WEATHER])
        assert text.startswith("<|system|>Be kind.\n") and text.count("<|system|>") == 1 and "<tools>" in text


def test_without_system_messages_tools_are_described_by_the_user() -> None:
    text = prompts(TURNS).render([HI], [WEATHER])
    assert text.startswith("<|user|>You can call") and text.endswith("\n\nHi\n")


def test_calls_and_results_of_earlier_turns_are_text() -> None:
    history = [
        HI,
        {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]},
        {"role": "tool", "tool_call_id": "1", "content": "Sunny."},
        {"role": "tool", "tool_call_id": "2", "content": [{"type": "text", "text": "Warm."}]},
        {"role": "user", "content": "And now?"},
        {"role": "assistant", "content": "I look.", "tool_calls": [CALL]},
    ]
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city":  "Rome"}}\n</tool_call>'
    results = "<tool_response>\nSunny.\n</tool_response>\n<tool_response>\nWarm.\n</tool_response>"
    text = prompts(TURNS).render(history)  # no tools any more
    assert text == (
        f"<|user|>Hi\n<|assistant|>{call}\n{call}\n<|user|>{results}\nAnd now?\n<|assistant|>I look.\n{call}\n"
    )
    assert history[1]["content"] is None


def test_calls_are_written_as_the_model_writes_them() -> None:
    history = [HI, {"role": "assistant", "content": "", "tool_calls": [CALL]}]
    assert "get_weather(city='Rome')" in prompts(CHATML, tool_call_parser="pythonic").render(history)
    broken = {**CALL, "function": {"name": "f", "arguments": "{"}}
    with pytest.raises(RequestError, match="expected a JSON object"):
        made = prompts(CHATML, tool_call_parser="pythonic")
        made.render([HI, {"role": "assistant", "content": "", "tool_calls": [broken]}])


def test_a_template_that_shows_tools_is_left_alone() -> None:
    shows = CHATML + "{% if tools %}{{ tools | tojson }}{% endif %}"
    made = answer_format(AnswerSettings(), shows, {})
    assert made.guide is None and made.row.name == "text"
    text = prompts(shows).render([HI], [WEATHER])
    assert text == ChatTemplate(shows).render([HI], tools=[WEATHER])


def test_which_row_serves_and_why() -> None:
    generic = answer_format(AnswerSettings(), CHATML, {})
    assert generic.row.name == "generic" and "shows no tools" in generic.reason and generic.guide is not None
    named = answer_format(AnswerSettings(tool_call_parser="mistral"), CHATML, {})
    assert named.row.name == "mistral" and named.guide == generic.guide
    assert answer_format(AnswerSettings(tool_call_parser="none"), CHATML, {}).guide is None
    assert answer_format(AnswerSettings(), None, {}).guide is None


NEEDS = "{% for t in tools %}{{ t.function.name + ': ' + t.function.description }}{% endfor %}"
NEEDS_ALL = (
    "{% for t in tools %}{% for name, p in t.function.parameters.properties.items() %}"
    "{{ name + ' ' + p.description }}{% endfor %}{% endfor %}"
)


def test_a_tool_without_a_description_is_shown_where_the_template_needs_one() -> None:
    bare = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}}
    assert prompts(NEEDS).render([HI], [bare]) == "f: "
    assert prompts(NEEDS_ALL).render([HI], [bare]) == "a "
    shows = "{{ tools | tojson }}"
    assert prompts(shows).render([HI], [bare]) == json.dumps([bare])  # as it is where it can be


def test_the_first_refusal_counts_where_descriptions_do_not_help() -> None:
    bare = {"type": "function", "function": {"name": "f"}}
    with pytest.raises(RequestError, match="no f here"):
        prompts("{% if tools %}{{ raise_exception('no ' + tools[0].function.name + ' here') }}{% endif %}").render(
            [HI], [bare]
        )
