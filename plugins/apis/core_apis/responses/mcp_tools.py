"""Tools of type `mcp` of a request: the tools of the operator's servers that the model is shown.

Owns: which fields such a tool may have, and the choice among a server's tools. Never does: call one. Called by:
`core_apis.responses.tools`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from core.api.errors import RequestError, nearest
from core_apis.tools.offered import ServerTool, ToolServer

READ: Final = ("type", "server_label", "allowed_tools", "require_approval", "server_description")
"""Fields that are read. The description is neutral: the model is shown the tools' own descriptions."""
REFUSED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "server_url": "only the operator names servers (--tool-server); leave it out and name one by server_label",
        "connector_id": "connectors are a provider's; name a server of the operator by server_label",
        "tunnel_id": "tunnels are a provider's; name a server of the operator by server_label",
        "headers": "requests send nothing of their own to tool servers; leave it out",
        "authorization": "requests send nothing of their own to tool servers; leave it out",
        "defer_loading": "all tools are shown at once; leave it out",
    }
)
"""Fields that would change what is called, with what to do instead."""
NO_SERVERS: Final = (
    "call the MCP server from the client and offer its tools as functions; the operator may name one that this server calls "
    "(--tool-server)"
)


def shown_tools(tool: Mapping[str, Any], servers: Sequence[ToolServer], place: str) -> tuple[str, list[ServerTool]]:
    """Return the label of the server that a tool of type `mcp` names, and those of its tools that are allowed.

    Raises RequestError.
    """
    _check_fields(tool, place)
    server = _server(tool.get("server_label"), servers, place)
    allowed = _allowed(tool.get("allowed_tools"), server, place)
    return server.label, [each for each in server.tools if allowed is None or each.name in allowed]


def _check_fields(tool: Mapping[str, Any], place: str) -> None:
    """Raise RequestError for a field that is unknown, or not served with its value."""
    for name, value in tool.items():
        if name in REFUSED and value:
            raise RequestError(
                f"{place}.{name} is not served: {REFUSED[name]}.", param="tools", code="unsupported_tool"
            )
        if name not in READ and name not in REFUSED:
            raise RequestError(
                f"{place}.{name} is no field of a tool of type 'mcp'.{nearest(name, READ)}", param="tools"
            )
    if tool.get("require_approval") not in (None, "never"):
        raise RequestError(
            f"{place}.require_approval is {tool['require_approval']!r}; this server asks for no approvals: it calls the tools "
            "that it shows. Expected 'never', and allowed_tools to show fewer.",
            param="tools",
        )


def _server(label: object, servers: Sequence[ToolServer], place: str) -> ToolServer:
    """Return the server of this label. Raises RequestError if there is none."""
    for server in servers:
        if server.label == label:
            return server
    known = [each.label for each in servers]
    names = ", ".join(f"'{each}'" for each in known) or "none that has answered"
    hint = nearest(label, known) if isinstance(label, str) else ""
    raise RequestError(
        f"{place}.server_label is {label!r}; the tool servers of this server are: {names}.{hint}", param="tools"
    )


def _allowed(given: object, server: ToolServer, place: str) -> frozenset[str] | None:
    """Return the names of the allowed tools; None: all of them."""
    if given is None:
        return None
    names = given
    if isinstance(given, dict):
        others = [name for name, value in given.items() if name != "tool_names" and value is not None]
        if others:
            raise RequestError(
                f"{place}.allowed_tools.{others[0]} is not served; expected tool_names, a list of names.", param="tools"
            )
        names = given.get("tool_names")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise RequestError(f"{place}.allowed_tools is no list of names.", param="tools")
    known = [each.name for each in server.tools]
    for name in names:
        if name not in known:
            raise RequestError(
                f"{place}.allowed_tools names '{name}', which '{server.label}' does not have.{nearest(name, known)}",
                param="tools",
            )
    return frozenset(names)
