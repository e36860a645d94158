"""A tool server as requests see it: its label and its tools.

Owns: these Structs, and the limits on what a server may list. Never does: speak to a server. Called by:
`core_apis.tools.tool_servers` (makes them), the preparation of /v1/responses (offers them to the model).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

MOST_TOOLS: Final = 128
"""Maximum number of tools of one server."""
MOST_LIST: Final = 256 << 10
"""Maximum size of the names, descriptions and schemas of one server, in bytes of JSON."""
LONGEST_LABEL: Final = 32
TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")

_encode = msgspec.json.Encoder().encode


class ServerTool(msgspec.Struct, frozen=True):
    """One tool of a server. input_schema: the JSON schema of its arguments, an object's."""

    name: str
    description: str
    input_schema: dict[str, Any]


class ToolServer(msgspec.Struct, frozen=True):
    """A tool server by the label that requests name."""

    label: str
    tools: tuple[ServerTool, ...]


class CallResult(msgspec.Struct, frozen=True):
    """The result of one call: its output, or else why there is none."""

    output: str | None = None
    error: str | None = None


def label_of(name: str) -> str:
    """Return a server's own name in the form of a label; empty if nothing of it is left."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_")[:LONGEST_LABEL]


def usable(tools: Iterable[ServerTool]) -> tuple[list[ServerTool], list[str]]:
    """Return the tools that can be offered, and a sentence for each that cannot."""
    kept: dict[str, ServerTool] = {}
    problems: list[str] = []
    num_bytes = 0
    for tool in tools:
        try:
            size = len(_encode(tool))
        except (TypeError, ValueError, RecursionError) as error:  # lone surrogates, more levels than are read
            problems.append(f"the name, description or schema of {tool.name[:80]!r} is no JSON ({error})")
            continue
        if not TOOL_NAME.fullmatch(tool.name):
            problems.append(f"the name {tool.name[:80]!r} is none of 1 to 64 letters, digits, '_', '.' and '-'")
        elif tool.name in kept:
            problems.append(f"'{tool.name}' is listed twice")
        elif num_bytes + size > MOST_LIST:
            problems.append(f"'{tool.name}' takes the list beyond {MOST_LIST} bytes")
        elif tool.input_schema.get("type", "object") != "object":
            problems.append(f"the schema of '{tool.name}' is not an object's")
        elif len(kept) == MOST_TOOLS:
            problems.append(f"'{tool.name}' is more than the {MOST_TOOLS} tools that a server may have")
        else:
            kept[tool.name] = tool
            num_bytes += size
    return list(kept.values()), problems
