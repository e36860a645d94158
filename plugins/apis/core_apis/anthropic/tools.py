"""Translation of tools and the choice among them from Anthropic's shape into the chat API's.

Owns: that translation, and refusing tools that no client runs. Never does: check what the chat request checks itself.
Called by: `core_apis.anthropic.chat`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from core.api.errors import RequestError, nearest
from core_apis.protocol.anthropic import Tool, ToolChoice

TOOL_CHOICES: Mapping[str, str] = MappingProxyType({"auto": "auto", "any": "required", "none": "none"})
"""The chat API's name for each of Anthropic's tool choices."""


def chat_tool(tool: Tool, place: str) -> dict[str, Any]:
    """Translate a tool into the chat API's shape. Raises RequestError for tools that the client does not run.

    place: of the tool in the request.
    """
    if tool.type not in (None, "custom"):
        raise RequestError(
            f"{place} is of type '{tool.type}'; only tools of type 'custom', which have an input_schema and which the client "
            "runs, are served. Leave it out, or describe it with an input_schema.",
            param="tools",
        )
    if not tool.name or tool.input_schema is None:
        missing = "input_schema" if tool.name else "name"
        raise RequestError(f"{place} has no {missing}; a tool needs a name and an input_schema.", param="tools")
    if tool.defer_loading:
        raise RequestError(
            f"{place}.defer_loading is set, but there is no search for tools: send only tools that the model is to see at "
            "once.",
            param="tools",
        )
    if tool.allowed_callers not in (None, [], ["direct"]):
        raise RequestError(
            f"{place}.allowed_callers is {tool.allowed_callers!r}; only ['direct'] is served, since this server runs no code.",
            param="tools",
        )
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.input_examples:
        function["parameters"] = {**tool.input_schema, "examples": tool.input_examples}
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def chat_tool_choice(choice: ToolChoice) -> Any:
    """Translate a tool choice into the chat API's shape. Raises RequestError."""
    if choice.type == "tool":
        if not choice.name:
            raise RequestError("tool_choice is of type 'tool' without a name; say which one.", param="tool_choice")
        return {"type": "function", "function": {"name": choice.name}}
    if choice.type not in TOOL_CHOICES:
        names = (*TOOL_CHOICES, "tool")
        raise RequestError(
            f"tool_choice is of type {choice.type!r}; expected one of: {', '.join(names)}.{nearest(choice.type, names)}",
            param="tool_choice",
        )
    return TOOL_CHOICES[choice.type]
