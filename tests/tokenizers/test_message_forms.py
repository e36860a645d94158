"""Messages reach each template in the form that it takes: arguments as text or objects, roles, names of reasoning."""

import json
from typing import Any

import pytest

from core.api.errors import RequestError
from core_tokens.chat.chat_template import ChatTemplate

ARGUMENTS = '{"b":  1, "a": "é"}'
CALLS = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }};{% for c in m.tool_calls or [] %}%s{% endfor %}{% endfor %}"
)
# How templates of the field write a call's arguments, and what of ARGUMENTS they should then write.
SPELLINGS = {
    "{{ c.function.arguments }}": ARGUMENTS,
    "{{ c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}": ARGUMENTS,
    "{{ c.function.arguments | tojson }}": '{"b": 1, "a": "é"}',
    "{{ c.function | tojson }}": '{"name": "f", "arguments": {"b": 1, "a": "é"}}',
    "{% for k, v in c.function.arguments.items() %}<{{ k }}>{{ v }}{% endfor %}": "<b>1<a>é",
    "{% for k, v in c.function.arguments | items %}<{{ k }}>{{ v }}{% endfor %}": "<b>1<a>é",
    (
        "{% if c.function.arguments is string %}{{ c.function.arguments }}{% else %}"
        "{% for k, v in c.function.arguments | items %}<{{ k }}>{{ v }}{% endfor %}{% endif %}"
    ): "<b>1<a>é",
    "{{ c.function.arguments if c.function.arguments is string else c.function.arguments | tojson(indent=2) }}": ARGUMENTS,
    "{{ '{\"arguments\": ' + c.function.arguments + '}' }}": '{"arguments": ' + ARGUMENTS + "}",
}


def conversation(arguments: Any, **more: Any) -> list[dict[str, Any]]:
    call = {"id": "call_7", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "", "tool_calls": [call], **more},
        {"role": "tool", "tool_call_id": "call_7", "content": "done"},
    ]


@pytest.mark.parametrize(("spelling", "expected"), SPELLINGS.items())
def test_arguments_come_as_the_template_takes_them(spelling: str, expected: str) -> None:
    template = ChatTemplate(CALLS.replace("%s", spelling))
    assert expected in template.render(conversation(ARGUMENTS))
    from_object = template.render(conversation(json.loads(ARGUMENTS)))
    assert expected.replace("  ", " ") in from_object


def test_arguments_that_are_no_object() -> None:
    takes_apart = ChatTemplate(CALLS.replace("%s", "{{ c.function.arguments | tojson }}"))
    assert "{}" in takes_apart.render(conversation(""))
    for wrong in ('{"a": ', "[1]", "[" * 100_000):
        with pytest.raises(RequestError, match="no JSON object"):
            takes_apart.render(conversation(wrong))
    shows = ChatTemplate(CALLS.replace("%s", "{{ c.function.arguments }}"))
    assert '{"a": ' in shows.render(conversation('{"a": '))  # what was cut goes back as it is


def test_a_custom_tool_is_a_function_of_its_input() -> None:
    template = ChatTemplate("{{ tools | tojson }}" + CALLS.replace("%s", "{{ c.function | tojson }}"))
    messages = conversation("{}")
    call = {"id": "call_7", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}
    messages[1]["tool_calls"] = [call]
    text = template.render(messages, tools=[{"type": "custom", "custom": {"name": "patch", "description": "Edits."}}])
    assert '{"name": "patch", "arguments": {"input": "*** Begin"}}' in text
    assert '"required": ["input"]' in text and "Edits." in text


def test_results_know_the_name_of_their_tool() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.role }}={{ m.name }};{% endfor %}")
    assert template.render(conversation("{}")) == "user=;assistant=;tool=f;"


def test_developers_are_heard_as_the_system_where_the_template_has_no_such_role() -> None:
    messages = [{"role": "developer", "content": "x"}]
    assert ChatTemplate("{{ messages[0].role }}").render(messages) == "system"
    assert ChatTemplate("{{ messages[0].role }}{# developer #}").render(messages) == "developer"


@pytest.mark.parametrize("given", ["reasoning", "reasoning_content"])
@pytest.mark.parametrize("read", ["reasoning", "reasoning_content", "thinking"])
def test_reasoning_comes_under_the_name_that_the_template_reads(given: str, read: str) -> None:
    template = ChatTemplate("{% for m in messages %}{{ m." + read + " }}|{% endfor %}")
    assert template.render(conversation("{}", **{given: "hm"})) == "|hm||"


def test_reasoning_without_an_answer_is_what_continues() -> None:
    source = "{% for m in messages %}<think>{{ m.reasoning_content | trim }}</think>{{ m.content }}{% endfor %}"
    begun = [{"role": "assistant", "content": "", "reasoning": "So far"}]
    assert ChatTemplate(source).render(begun, False, True) == "<think>So far"
    begun[0]["content"] = "It"
    assert ChatTemplate(source).render(begun, False, True) == "<think>So far</think>It"


def test_whether_a_template_shows_tools() -> None:
    sources = ["{{ messages }}", "{% if tools is defined and tools %}{{ tools }}{% endif %}"]
    assert ["tools" in ChatTemplate(source).variables(with_tools=True) for source in sources] == [False, True]
    both = ChatTemplate("{{ messages }}", for_tools="{{ tools }}")
    assert "tools" in both.variables(with_tools=True) and "tools" not in both.variables()
