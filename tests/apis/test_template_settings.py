"""What a server tells its chat template: default variables, names of efforts, the form of contents, hidden tools."""

from collections.abc import Callable
from typing import Any

import pytest

from core.api.errors import ConfigError, UserError
from core_apis.prepare.chat_template import read_template
from core_config.resolve import resolve
from core_config.served.server_config import ServerConfig, TemplateSettings
from tests.apis.conftest import RunningServer

Starter = Callable[..., Any]
SHOWN = "{{ style | default('plain') }};{{ reasoning_effort | default('none asked') }};{{ tools | length if tools else 0 }};"
CONTENTS = "{% for m in messages %}{{ m.content is string }} {{ m.content }}{% endfor %}"
TOOL = {"type": "function", "function": {"name": "weather"}}
HI = [{"role": "user", "content": "Hi"}]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "you"}]}]


def quiet(template: str, **settings: Any) -> ServerConfig:
    return ServerConfig(uvicorn_log_level="warning", chat_template=template, template=TemplateSettings(**settings))


def shown(running: RunningServer, messages: Any = HI, **fields: Any) -> str:
    """The prompt of a conversation, by way of its tokens: one a byte."""
    ids = running.http.post("/tokenize", json={"messages": messages, **fields}).json()["tokens"]
    text: str = running.http.post("/detokenize", json={"tokens": ids}).json()["prompt"]
    return text


def test_defaults_hold_where_a_request_says_nothing(start_server: Starter) -> None:
    settings: dict[str, Any] = {"variables": {"style": "terse"}, "efforts": {"minimal": "low"}}
    with start_server(quiet(SHOWN, **settings)) as running:
        assert shown(running) == "terse;none asked;0;"
        assert shown(running, chat_template_kwargs={"style": "wordy"}) == "wordy;none asked;0;"
        assert shown(running, reasoning_effort="minimal") == "terse;low;0;"
        assert shown(running, reasoning_effort="high") == "terse;high;0;"
        assert shown(running, tools=[TOOL], tool_choice="none") == "terse;none asked;0;"
        assert shown(running, tools=[TOOL]) == "terse;none asked;1;"


def test_tools_that_must_not_be_called_are_shown_on_request(start_server: Starter) -> None:
    with start_server(quiet(SHOWN, shows_uncallable=True)) as running:
        assert shown(running, tools=[TOOL], tool_choice="none") == "plain;none asked;1;"
        body = {"messages": HI, "tools": [TOOL], "tool_choice": "none", "max_tokens": 3}
        message = running.http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
        assert message["content"] and not message.get("tool_calls")


@pytest.mark.parametrize(
    ("given", "text", "parts"),
    [
        ("auto", "True Hi", "True Hi\nyou"),
        ("string", "True Hi", "True Hi\nyou"),
        ("openai", "False [{'type': 'text', 'text': 'Hi'}]", f"False {PARTS[0]['content']}"),
    ],
)
def test_contents_have_the_form_that_is_asked_for(start_server: Starter, given: str, text: str, parts: str) -> None:
    with start_server(quiet(CONTENTS, content_format=given)) as running:
        assert shown(running) == text
        assert shown(running, PARTS) == parts


def test_names_of_templates(start_server: Starter) -> None:
    with start_server(quiet("chatml")) as running:
        assert shown(running) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert read_template("rag", {"rag": "{{ own }}"}) == "{{ own }}"
    with pytest.raises(UserError, match=r"'chatmI'.*one of the names rag, chatml, llama2"):
        read_template("chatmI", {"rag": ""})


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"default_chat_template_kwargs": {"messages": []}}, "'messages' may not be set"),
        ({"default_chat_template_kwargs": {"x": "y" * 70_000}}, "has 70008 bytes of JSON; expected at most 65536"),
        ({"reasoning_effort_map": {"hihg": "high"}}, "'hihg' is no effort.*Did you mean 'high'"),
        ({"reasoning_effort_map": {"high": 3}}, "'high' is given 3; expected a text"),
        ({"chat_template_content_format": "list"}, "auto, string, openai|auto.*string.*openai"),
        ({"chat_template": "no/such.jinja"}, "neither a template nor a readable file"),
    ],
)
def test_what_cannot_be_told_is_refused_before_anything_starts(
    tiny_llama: Any, arguments: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        resolve({"model": str(tiny_llama), **arguments}, context="serve", environ={})
