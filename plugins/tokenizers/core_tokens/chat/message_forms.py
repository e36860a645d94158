"""The message forms that chat templates accept, and the conversion of messages to them.

Owns: the properties of a template (variables, roles, names of reasoning), and the conversion. Never does: render, or
check a request. Called by: `core_tokens.chat.chat_template`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jinja2 import nodes

from core.api.errors import RequestError
from core_tokens.chat.written_text import joined, written

REASONING_NAMES = ("reasoning_content", "reasoning", "thinking")
"""Field names under which clients send, and templates read, the reasoning of earlier turns."""

ContentFormat = Literal["auto", "string", "openai"]


CUSTOM_INPUT = "input"
"""The only argument of a custom tool where a template supports only functions."""

PROBE_ARGUMENTS = '{"city": "Paris"}'
PROBE_SHOWN = ('{"city":"Paris"}', "{'city':'Paris'}")
"""The probe's arguments without white space, as JSON and as Python show them."""
SOUND = "audio"
"""Type of the part that stands for a sound, next to which models expect no new line."""
PROBE_TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "Its name."}}},
    },
}


@dataclass(frozen=True, slots=True)
class TemplateForms:
    """The properties of a template.

    parts: it accepts a message's content as a list of parts.
    no_text: it gets contents as lists of parts alone.
    variables: the names that occur in it, including its own.
    developer: it supports the role `developer`.
    reasoning: the names in `REASONING_NAMES` that it reads.
    """

    parts: bool
    no_text: bool
    variables: frozenset[str]
    developer: bool
    reasoning: tuple[str, ...]


def forms_of(source: str, tree: nodes.Template, content_format: ContentFormat = "auto") -> TemplateForms:
    """Determine the properties from a template's source and syntax tree, without rendering.

    content_format: form of contents, if it is not to be determined.
    """
    names = frozenset(node.name for node in tree.find_all(nodes.Name))
    return TemplateForms(
        parts=_iterates_content(tree) if content_format == "auto" else content_format == "openai",
        no_text=content_format == "openai",
        variables=names,
        developer="developer" in source,
        reasoning=tuple(name for name in REASONING_NAMES if name in source),
    )


def probe_conversation() -> list[dict[str, Any]]:
    """Return a conversation with a call whose arguments are text."""
    call = {"id": "call12345", "type": "function", "function": {"name": "weather", "arguments": PROBE_ARGUMENTS}}
    return [
        {"role": "user", "content": "Is it warm?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call12345", "name": "weather", "content": "It is."},
    ]


def shows_as_one(text: str) -> bool:
    """Whether a rendered `probe_conversation` shows the arguments as one value instead of in a form of the template's
    own.
    """
    bare = "".join(text.split())
    return any(shown in bare for shown in PROBE_SHOWN)


class MessageForms:
    """Converts the messages of one conversation to its template's forms, in order.

    wants_objects: called when a message has calls; whether the template expects their arguments as objects instead of
    text.
    media: by type of part, what stands for an item where the template takes no parts.
    """

    def __init__(self, forms: TemplateForms, wants_objects: Callable[[], bool], media: Mapping[str, str]) -> None:
        self._media = {name: written(text) for name, text in media.items()}
        self._forms = forms
        self._wants_objects = wants_objects
        self._names: dict[str, str] = {}

    def adapt(self, message: dict[str, Any]) -> dict[str, Any]:
        """Change `message`, a copy of the next one, in place. Raises RequestError."""
        content = message.get("content")
        if isinstance(content, str) and self._forms.no_text:
            message["content"] = [{"type": "text", "text": content}]
        if isinstance(content, list) and not self._forms.parts:
            message["content"] = "\n".join(map(part_text, content)) if not self._media else self._joined(content)
        role = message.get("role")
        if role == "developer" and not self._forms.developer:
            message["role"] = "system"
        elif role == "assistant":
            self._name_reasoning(message)
            calls = message.get("tool_calls")
            if isinstance(calls, list):
                message["tool_calls"] = [self._call(call) for call in calls]
        elif role == "tool":
            known = self._names.get(str(message.get("tool_call_id")))
            if known is not None:
                message.setdefault("name", known)
        return message

    def _joined(self, content: list[Any]) -> str:
        """Return the parts of a message as one text, in which the template's own placeholder stands for each item."""
        pieces: list[str] = []
        before: str | None = SOUND
        for part in content:
            kind = part.get("type") if isinstance(part, dict) else None
            pieces += [
                "" if SOUND in (kind, before) else "\n",
                self._media[kind] if kind in self._media else part_text(part),
            ]
            before = kind
        return joined(pieces)

    def _name_reasoning(self, message: dict[str, Any]) -> None:
        """Rename reasoning from the client's field name to those that the template reads."""
        given = next((message[name] for name in REASONING_NAMES if message.get(name)), None)
        if given is not None:
            for name in self._forms.reasoning:
                message[name] = given

    def _call(self, call: Any) -> Any:
        if not isinstance(call, dict):
            return call
        custom = call.get("custom")
        if call.get("type") == "custom" and isinstance(custom, dict):
            given = {CUSTOM_INPUT: custom.get("input", "")}
            as_function = {"name": custom.get("name"), "arguments": given}
            call = {"id": call.get("id"), "type": "function", "function": as_function}
        function = call.get("function")
        if not isinstance(function, dict):
            return call
        self._names[str(call.get("id"))] = str(function.get("name"))
        arguments = function.get("arguments")
        if not isinstance(arguments, str | dict):
            return call
        formed = _as_object(arguments) if self._wants_objects() else _as_text(arguments)
        return {**call, "function": {**function, "arguments": formed}}


def _as_object(arguments: str | dict[str, Any]) -> dict[str, Any]:
    if isinstance(arguments, dict):
        return arguments
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        return value
    raise RequestError(
        f"The arguments of a tool call are {arguments[:100]!r}, which is no JSON object; the model's chat template needs one.",
        param="messages",
    )


def _as_text(arguments: str | dict[str, Any]) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def part_text(part: Any) -> str:
    """Return the text of a content part. Raises RequestError when it has none."""
    if isinstance(part, str):
        return part
    if has_text(part):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    raise RequestError(f"Content part of type {kind!r} is not supported; expected 'text'.", param="messages")


def has_text(part: Any) -> bool:
    """Whether a content part is text."""
    return isinstance(part, dict) and isinstance(part.get("text"), str)


def functions_of(tools: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Convert tools to the form of templates: a custom tool becomes a function whose only argument is its input."""
    return [_function(tool) for tool in tools]


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    custom = tool.get("custom")
    if tool.get("type") != "custom" or not isinstance(custom, Mapping):
        return tool
    text = {"type": "string", "description": "The tool's input, as free text."}
    parameters = {"type": "object", "properties": {CUSTOM_INPUT: text}, "required": [CUSTOM_INPUT]}
    description = custom.get("description") or ""
    function = {"name": custom.get("name"), "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def _iterates_content(tree: nodes.Template) -> bool:
    """Whether the template iterates over a message's content, so that it accepts a list of parts."""
    aliases: set[str] = set()
    for assignment in tree.find_all(nodes.Assign):
        if isinstance(assignment.target, nodes.Name) and _mentions_content(assignment.node, set()):
            aliases.add(assignment.target.name)
    return any(_mentions_content(loop.iter, aliases) for loop in tree.find_all(nodes.For))


def _mentions_content(node: nodes.Node, aliases: set[str]) -> bool:
    """Whether an expression is `x.content`, `x['content']` or a name assigned from one, possibly filtered."""
    while isinstance(node, nodes.Filter) and node.node is not None:
        node = node.node
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return isinstance(node, nodes.Name) and node.name in aliases
