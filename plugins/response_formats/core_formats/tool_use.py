"""The validated tools of a request: the definitions, the callable ones, and whether a call is required.

Owns: `ToolUse` and the checks. Never does: render, constrain or parse. Called by: bodies with a conversation,
preparation, `LLM.chat`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from core.api.errors import RequestError, nearest
from core.api.structured_outputs import GrammarKind, GrammarSpec
from core_formats.calls.value_types import property_types
from core_formats.server_limits import ServerLimits
from core_formats.tool_spec import ToolSpec

NAME = re.compile(r"[A-Za-z0-9_.\-]{1,128}")
NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}}
SYNTAXES: Mapping[str, GrammarKind] = {"lark": "lark", "regex": "regex"}
KINDS = ("function", "custom")


class ToolUse(msgspec.Struct, frozen=True):
    """The tools of one request.

    shown:    the definitions as templates take them; empty when the model is to see none.
    callable: those that may be called, all or the allowed ones.
    choice:   `none`, `auto`, `required`, or the name of the tool to call.
    parallel: whether an answer may hold several calls.
    limited:  whether some tools are shown that may not be called.
    """

    shown: list[dict[str, Any]] = []
    callable: list[ToolSpec] = []
    choice: str = "none"
    parallel: bool = True
    limited: bool = False

    @property
    def restricts(self) -> bool:
        """Whether the answer needs a constraint, because an unconstrained model could violate the request."""
        if not self.callable:
            return False
        is_free = self.choice == "auto" and self.parallel and not self.limited
        return not is_free or any(tool.strict or tool.grammar is not None for tool in self.callable)


def tool_use(
    tools: Sequence[Any] | None,
    choice: Any,
    parallel: bool | None,
    limits: ServerLimits,
    *,
    shows_uncallable: bool = False,
) -> ToolUse:
    """Validate these fields of a request. Raises RequestError.

    shows_uncallable: whether tools are shown although none may be called.
    """
    if not tools:
        if choice not in (None, "none", "auto"):
            raise RequestError("tool_choice asks for a tool, but there are no tools; give some.", param="tool_choice")
        return ToolUse()
    specs = _specs(tools, limits)
    mode, allowed = _choice(choice, [tool.name for tool in specs])
    if mode == "none":
        return ToolUse(shown=[_shown(tool) for tool in tools] if shows_uncallable else [])
    return ToolUse(
        shown=[_shown(tool) for tool in tools],
        callable=[tool for tool in specs if tool.name in allowed],
        choice=mode,
        parallel=parallel is not False,
        limited=len(allowed) < len(specs),
    )


def _specs(tools: Sequence[Any], limits: ServerLimits) -> list[ToolSpec]:
    if len(tools) > limits.max_tools:
        raise RequestError(
            f"tools has {len(tools)} entries; expected at most {limits.max_tools} (--max-tools).", param="tools"
        )
    size = len(msgspec.json.encode(tools))
    if size > limits.max_tools_size:
        raise RequestError(
            f"tools has {size} bytes of JSON; expected at most {limits.max_tools_size} (--max-tools-size).",
            param="tools",
        )
    specs: list[ToolSpec] = []
    names: set[str] = set()
    for index, tool in enumerate(tools):
        spec = _spec(f"tools[{index}]", tool)
        if spec.name in names:
            raise RequestError(f"tools[{index}] has the name '{spec.name}' of another tool; rename one.", param="tools")
        names.add(spec.name)
        specs.append(spec)
    return specs


def _spec(place: str, tool: Any) -> ToolSpec:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind not in KINDS:
        raise RequestError(
            f"{place} is of type {kind!r}, which is not served: this server runs no tools itself; expected 'function' or "
            "'custom'.",
            param="tools",
        )
    definition = tool.get(kind)
    if not isinstance(definition, dict):
        raise RequestError(f"{place}.{kind} is missing; expected an object with a name.", param="tools")
    name = definition.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        shown = repr(name)[:100]
        raise RequestError(
            f"{place}.{kind}.name is {shown}; expected 1 to 128 letters, digits, '_', '-' and '.'.", param="tools"
        )
    description = definition.get("description")
    if description is not None and not isinstance(description, str):
        raise RequestError(f"{place}.{kind}.description must be a string.", param="tools")
    if kind == "custom":
        grammar = _grammar(f"{place}.custom.format", definition.get("format"))
        return ToolSpec(name, description or "", kind="custom", grammar=grammar)
    strict = definition.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise RequestError(f"{place}.function.strict must be true or false.", param="tools")
    parameters = _parameters(f"{place}.function.parameters", definition.get("parameters"))
    types = property_types(parameters)  # computed here, since the parser runs on the event loop
    return ToolSpec(name, description or "", parameters, strict=bool(strict), types=types)


def _parameters(place: str, given: Any) -> dict[str, Any]:
    if given is None or given == {}:
        return dict(NO_ARGUMENTS)
    kind = given.get("type", "object") if isinstance(given, dict) else None
    if kind != "object" or not isinstance(given.get("properties", {}), dict):
        raise RequestError(f"{place} is no JSON schema of an object; give one of type 'object'.", param="tools")
    return dict(given)


def _grammar(place: str, given: Any) -> GrammarSpec | None:
    """Return the grammar of a custom tool's text; None: any text."""
    kind = "text" if given is None else given.get("type") if isinstance(given, dict) else None
    if kind == "text":
        return None
    inner = given.get("grammar") if kind == "grammar" else None
    if not isinstance(inner, dict):
        raise RequestError(
            f"{place} is not understood; expected type 'text', or 'grammar' with a grammar.", param="tools"
        )
    syntax = inner.get("syntax")
    definition = inner.get("definition")
    if not isinstance(syntax, str) or syntax not in SYNTAXES:
        raise RequestError(f"{place}.grammar.syntax is {syntax!r}; expected 'lark' or 'regex'.", param="tools")
    if not isinstance(definition, str) or not definition:
        raise RequestError(f"{place}.grammar.definition is missing; expected the grammar's text.", param="tools")
    return GrammarSpec(SYNTAXES[syntax], definition)


def _shown(tool: dict[str, Any]) -> dict[str, Any]:
    """Return a definition in the form that models were trained on: without fields for the server, and with parameters."""
    if tool["type"] == "custom":
        return tool
    function = {key: value for key, value in tool["function"].items() if key != "strict"}
    if not function.get("parameters"):
        function["parameters"] = dict(NO_ARGUMENTS)
    return {"type": "function", "function": function}


def _choice(given: Any, names: list[str]) -> tuple[str, set[str]]:
    """Return the mode or the name of a tool, and the names that may be called."""
    if given is None:
        return "auto", set(names)
    if isinstance(given, str) and given in ("none", "auto", "required"):
        return given, set(names)
    kind = given.get("type") if isinstance(given, dict) else None
    if kind in KINDS:
        name = _chosen_name("tool_choice", given, names)
        return name, {name}
    if kind == "allowed_tools":
        return _allowed(given.get("allowed_tools"), names)
    raise RequestError(
        f"tool_choice is {repr(given)[:100]}; expected 'none', 'auto', 'required', a tool's type and name, or 'allowed_tools'.",
        param="tool_choice",
    )


def _allowed(given: Any, names: list[str]) -> tuple[str, set[str]]:
    tools = given.get("tools") if isinstance(given, dict) else None
    mode = given.get("mode") if isinstance(given, dict) else None
    if mode not in ("auto", "required") or not isinstance(tools, list) or not tools:
        raise RequestError(
            "tool_choice.allowed_tools needs a mode, 'auto' or 'required', and a list of tools.", param="tool_choice"
        )
    if len(tools) > len(names):
        raise RequestError("tool_choice.allowed_tools names more tools than there are.", param="tool_choice")
    return str(mode), {_chosen_name(f"tool_choice.allowed_tools.tools[{i}]", t, names) for i, t in enumerate(tools)}


def _chosen_name(place: str, given: Any, names: list[str]) -> str:
    kind = given.get("type") if isinstance(given, dict) else None
    definition = given.get(kind) if kind in KINDS else None
    name = definition.get("name") if isinstance(definition, dict) else None
    if not isinstance(name, str):
        raise RequestError(
            f"{place} has no name; expected {{'type': 'function', 'function': {{'name': ...}}}}.", param="tool_choice"
        )
    if name not in names:
        raise RequestError(
            f"{place} names '{name[:100]}', which is none of the tools.{nearest(name, names)}", param="tool_choice"
        )
    return name
