"""Translation of tools of /v1/responses into the form of chat requests, and back from a called name.

Owns: this translation, and the refusal of tools that a provider runs. Never does: read a tool's schema (the chat
request's checks do). Called by: `core_apis.responses.translation`, the writer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from core.api.errors import RequestError, nearest
from core_apis.responses.mcp_tools import NO_SERVERS, shown_tools
from core_apis.tools.offered import ServerTool, ToolServer

ToolKind = Literal["function", "custom", "mcp"]
Tool = dict[str, Any]

SEPARATOR = "__"
"""The separator between the name of a namespace and that of its tool, in the single name that models see."""

HOSTED: Mapping[str, str] = MappingProxyType(
    {
        "apply_patch": "offer it as a custom or function tool",
        "code_interpreter": "leave it out",
        "computer": "leave it out",
        "computer_use_preview": "leave it out",
        "file_search": "leave it out",
        "image_generation": "leave it out",
        "local_shell": "offer a function that runs commands",
        "mcp": NO_SERVERS,
        "programmatic_tool_calling": "leave it out",
        "shell": "offer a function that runs commands",
        "tool_search": "offer all tools at once",
        "web_search": 'leave it out; Codex does with web_search = "disabled" in its config.toml',
        "web_search_preview": "leave it out",
    }
)
"""Kinds of tools that need a provider, or a model that knows them, each with an alternative."""

CHAT_FIELDS = ("name", "description", "parameters", "strict")


class OfferedTool(msgspec.Struct, array_like=True):
    """A tool as the client knows it. kind: `mcp`: this server calls it; its namespace is the label of its tool server."""

    name: str
    kind: ToolKind
    namespace: str | None = None


ToolTable = dict[str, OfferedTool]
"""Tools by the name that the model sees."""


class ChatTools(msgspec.Struct):
    """The tools of a chat request. tools, choice: its fields. table: for the translation back.

    shown: tools of tool servers, by label.
    """

    tools: list[Tool]
    choice: str | Tool | None
    table: ToolTable
    shown: dict[str, list[ServerTool]] = {}


def chat_tools(
    tools: Sequence[Tool] | None, choice: str | Tool | None, servers: Sequence[ToolServer] = ()
) -> ChatTools:
    """Translate the tools and the choice of a request. servers: the operator's. Raises RequestError."""
    made = ChatTools([], None, {})
    for index, tool in enumerate(tools or ()):
        place = f"tools[{index}]"
        if tool.get("type") == "namespace":
            _add_namespace(made, tool, place)
        elif tool.get("type") == "mcp" and servers:
            _add_server(made, tool, servers, place)
        else:
            _add(made, tool, None, place)
    made.choice = _chat_choice(made.table, choice)
    return made


def seen_name(name: str, namespace: str | None) -> str:
    """Return the name that the model sees."""
    return f"{namespace}{SEPARATOR}{name}" if namespace else name


def _add_namespace(made: ChatTools, tool: Tool, place: str) -> None:
    inner = tool.get("tools")
    namespace = tool.get("name")
    if not isinstance(inner, list) or not isinstance(namespace, str) or not namespace:
        raise RequestError(f"{place} is a namespace; expected a name and a list of tools.", param="tools")
    for index, each in enumerate(inner):
        within = f"{place}.tools[{index}]"
        if not isinstance(each, dict):
            raise RequestError(f"{within} is no object; expected a tool.", param="tools")
        _add(made, each, namespace, within)


def _add_server(made: ChatTools, tool: Tool, servers: Sequence[ToolServer], place: str) -> None:
    label, tools = shown_tools(tool, servers, place)
    if label in made.shown:
        raise RequestError(f"{place} names the tool server '{label}' again; name each once.", param="tools")
    made.shown[label] = tools
    for each in tools:
        function = {"name": each.name, "description": each.description, "parameters": each.input_schema}
        _add(made, {"type": "function", **function}, label, f"{place} ('{each.name}')", runs_here=True)


def _add(made: ChatTools, tool: Tool, namespace: str | None, place: str, *, runs_here: bool = False) -> None:
    kind = tool.get("type")
    if kind not in ("function", "custom"):
        raise _unserved(kind, place)
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise RequestError(f"{place} has no name; expected a text.", param="tools")
    seen = seen_name(name, namespace)
    if seen in made.table:
        raise RequestError(f"{place} has the name '{seen}' of another tool; give each its own.", param="tools")
    made.table[seen] = OfferedTool(name, "mcp" if runs_here else kind, namespace)
    content = {field: tool[field] for field in CHAT_FIELDS if tool.get(field) is not None}
    content["name"] = seen
    if kind == "custom" and tool.get("format") is not None:
        content["format"] = _chat_format(tool["format"], place)
    made.tools.append({"type": kind, kind: content})


def _unserved(kind: object, place: str) -> RequestError:
    advice = HOSTED.get(kind) if isinstance(kind, str) else None
    if advice is not None:
        message = f"{place} is of type '{kind}', which needs a provider that runs it; this server does not: {advice}."
        return RequestError(message, param="tools", code="unsupported_tool")
    known = ("function", "custom", "namespace")
    hint = nearest(kind, known) if isinstance(kind, str) else ""
    return RequestError(
        f"{place} is of type {kind!r}; expected 'function', 'custom' or 'namespace'.{hint}",
        param="tools",
        code="unsupported_tool",
    )


def _chat_format(given: object, place: str) -> Tool:
    """Translate a custom tool's format: chat requests nest it one level deeper."""
    if not isinstance(given, dict):
        raise RequestError(f"{place}.format is no object; expected a type and a grammar.", param="tools")
    if given.get("type") != "grammar":
        return given
    grammar = {key: value for key, value in given.items() if key != "type"}
    return {"type": "grammar", "grammar": grammar}


def _chat_choice(table: ToolTable, choice: str | Tool | None) -> str | Tool | None:
    """Translate the tool choice for a chat request."""
    if choice is None or isinstance(choice, str):
        return choice
    kind = choice.get("type")
    if kind in ("function", "custom", "mcp"):
        return _named(table, choice)
    if kind != "allowed_tools":
        raise RequestError(
            f"tool_choice is of type {kind!r}; expected 'function', 'custom', 'mcp' or 'allowed_tools', or one of the texts "
            "'auto', 'none' and 'required'.",
            param="tool_choice",
        )
    allowed = choice.get("tools")
    if not isinstance(allowed, list) or not all(isinstance(each, dict) for each in allowed):
        raise RequestError("tool_choice of type 'allowed_tools' needs a list of tools.", param="tool_choice")
    tools = [_named(table, each) for each in allowed]
    return {"type": kind, kind: {"mode": choice.get("mode"), "tools": tools}}


def _named(table: ToolTable, choice: Tool) -> Tool:
    """Return the tool that a choice names, in the form of chat requests."""
    name = choice.get("name")
    namespace = choice.get("server_label" if choice.get("type") == "mcp" else "namespace")
    seen = seen_name(name, namespace) if isinstance(name, str) else ""
    known = table.get(seen)
    if known is None:
        raise RequestError(
            f"tool_choice names the tool {name!r}, which tools do not have.{nearest(seen, table)}",
            param="tool_choice",
        )
    kind = "custom" if known.kind == "custom" else "function"
    return {"type": kind, kind: {"name": seen}}
