"""Rendering of conversations to prompts, including tools for models whose chat template does not show them.

Owns: `ConversationPrompts`: the message that describes tools, calls and results of earlier turns as text, and the
second try for templates that need every description. Never does: render (`core_tokens.chat.chat_template` does) or check a
request.
Called by: the server's preparation, `LLM.chat`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from core.api.errors import RequestError
from core_formats.calls.writing import writes_json, written_calls
from core_formats.response_format import ResponseFormat, ToolGuide
from core_formats.selection import AnswerFormat
from core_tokens.chat.chat_template import ChatTemplate
from core_tokens.chat.message_forms import CUSTOM_INPUT, functions_of, part_text
from core_tokens.chat.written_text import WrittenText

Message = Mapping[str, Any]
MARK = "\ue000tools\ue000"
EXAMPLE = [("function_name", {"argument_name": "value"})]
SYSTEM = ("system", "developer")


class ConversationPrompts:
    """The prompts of one template. served: the model's response format; None: no tool is ever called."""

    def __init__(self, template: ChatTemplate, served: AnswerFormat | None) -> None:
        self.template = template
        self._served = served

    @property
    def sources(self) -> tuple[str, ...]:
        """Return the Jinja sources of the template."""
        return self.template.sources

    def render(
        self, messages: Sequence[Message], tools: Sequence[Message] | None = None, **options: Any
    ) -> WrittenText:
        """Return the prompt. options: see `ChatTemplate.render`. Raises RequestError."""
        guide = None if self._served is None else self._served.guide
        if guide is not None and self._served is not None and (tools or _has_calls(messages)):
            told = with_calls_as_text(messages, self._served.row, guide)
            if tools:
                text = guide_text(guide, self._served.row, tools)
                told = with_text(told, text, in_system=self._shows_system)
            return self.template.render(told, **options)
        try:
            return self.template.render(messages, tools=tools, **options)
        except RequestError as error:
            described = [_described(tool) for tool in tools or ()]
            if described == list(tools or ()) or error.code is not None:
                raise
            try:
                return self.template.render(messages, tools=described, **options)
            except RequestError:
                raise error from None

    @cached_property
    def _shows_system(self) -> bool:
        """Whether the template shows a system message; some reject or drop it. Determined once, by rendering one."""
        probe = [{"role": "system", "content": MARK}, {"role": "user", "content": "Hi"}]
        try:
            return MARK in self.template.render(probe)
        except RequestError:
            return False


def guide_text(guide: ToolGuide, row: ResponseFormat, tools: Sequence[Message]) -> str:
    """Return the description of tools for a model that writes calls in the row's format."""
    functions = [tool["function"] for tool in functions_of(tools)]
    lines = "\n".join(json.dumps(function, ensure_ascii=False) for function in functions)
    text = guide.text.strip("\n").replace("{call}", written_calls(row, EXAMPLE).strip("\n"))
    return text.replace("{tools}", lines)  # replaced last, since a definition may contain any text


def with_text(messages: Sequence[Message], text: str, *, in_system: bool) -> list[Message]:
    """Return the messages with a text after the first system message, or before the first user message."""
    told = list(messages)
    roles = SYSTEM if in_system else ("user",)
    places = range(min(1, len(told))) if in_system else range(len(told))
    place = next((index for index in places if told[index].get("role") in roles), None)
    if place is None:
        return [{"role": roles[0], "content": text}, *told]
    content = told[place].get("content")
    joined = _joined(content, text) if in_system else _joined(text, content)
    told[place] = {**told[place], "content": joined}
    return told


def with_calls_as_text(messages: Sequence[Message], row: ResponseFormat, guide: ToolGuide) -> list[Message]:
    """Return the messages with calls as the model writes them, and results in user messages, which every template
    shows.

    A user message after results is merged with them, since many templates require alternating roles.
    """
    told: list[Message] = []
    has_results = False
    for message in messages:
        role = message.get("role")
        content: Any = message.get("content")
        calls = message.get("tool_calls")
        if role == "tool":
            content = guide.result[0] + _text(content) + guide.result[1]
        elif role == "assistant" and calls:
            written = written_calls(row, [_call(call, row) for call in calls])
            text = _text(content)
            content = f"{text}\n{written}" if text else written
        if has_results and role in ("tool", "user"):
            told[-1] = {"role": "user", "content": _joined(told[-1]["content"], content, "\n")}
        elif role == "tool":
            told.append({"role": "user", "content": content})
        else:
            told.append({**{key: value for key, value in message.items() if key != "tool_calls"}, "content": content})
        has_results = role == "tool" or (has_results and role == "user")
    return told


def _has_calls(messages: Iterable[Message]) -> bool:
    return any(message.get("role") == "tool" or message.get("tool_calls") for message in messages)


def _call(call: Any, row: ResponseFormat) -> tuple[str, Mapping[str, Any] | str]:
    """Return name and arguments of an earlier turn's call, as text where the model writes JSON."""
    custom = call.get("custom")
    if isinstance(custom, Mapping):
        return str(custom.get("name")), {CUSTOM_INPUT: custom.get("input", "")}
    function = call.get("function") or {}
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str) and not writes_json(row.calls[0]):
        arguments = _as_object(arguments)
    return str(function.get("name")), arguments


def _as_object(arguments: str) -> Mapping[str, Any]:
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, Mapping):
        return value
    raise RequestError(
        f"The arguments of a tool call are {arguments[:100]!r}; expected a JSON object, which this model's form of calls "
        "needs.",
        param="messages",
    )


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(part_text(part) for part in content)
    return "" if content is None else str(content)


def _joined(first: Any, second: Any, between: str = "\n\n") -> Any:
    """Join two contents: to a text, or to a list of parts if one of them is a list."""
    if not isinstance(first, list) and not isinstance(second, list):
        return between.join(text for text in (_text(first), _text(second)) if text)
    parts: list[Any] = []
    for content in (first, second):
        parts += content if isinstance(content, list) else [{"type": "text", "text": _text(content)}]
    return parts


def _described(tool: Message) -> Message:
    """Return a tool with a description, possibly empty, wherever one is allowed."""
    function = tool.get("function")
    if not isinstance(function, Mapping):
        return tool
    filled = {**function, "description": function.get("description") or ""}
    parameters = function.get("parameters")
    properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
    if isinstance(parameters, Mapping) and isinstance(properties, Mapping):
        described = {name: _with_description(schema) for name, schema in properties.items()}
        filled["parameters"] = {**parameters, "properties": described}
    return {**tool, "function": filled}


def _with_description(schema: Any) -> Any:
    return {"description": "", **schema} if isinstance(schema, Mapping) else schema
