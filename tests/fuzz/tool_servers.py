"""What a tool server lists and answers, damaged, and what a model writes as arguments: each call has a result.

Owns: good lists and results, and a connection that answers what a folder holds. Never does: damage anything, or speak MCP.
Called by: the table of targets.

Values are of the types that the `mcp` package checks; where it is installed, it also reads the damaged messages itself.
"""

import asyncio
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from core.api.errors import RequestError
from core_apis.responses.kept_items import packed
from core_apis.responses.mcp_tools import shown_tools
from core_apis.tools.offered import MOST_LIST, MOST_TOOLS, CallResult, ServerTool
from core_apis.tools.tool_servers import MOST_RESULT, ToolServers

NAMES = ("list", "result", "arguments")
LIMIT_S = 5.0
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
LIST = {
    "name": "A place",
    "tools": [
        {"name": "weather", "description": "The weather of a city.", "inputSchema": SCHEMA},
        {"name": "numbers", "description": "", "inputSchema": {"type": "object"}},
    ],
}
RESULT = {
    "content": [
        {"type": "text", "text": "WARM in Rome"},
        {"type": "image", "data": "AAAA", "mimeType": "image/png"},
        {"type": "resource_link", "uri": "file:///a", "name": "a"},
        {"type": "resource", "resource": {"uri": "file:///b", "text": "b"}},
    ],
    "structuredContent": {"one": 1},
    "isError": False,
}


class Listed(msgspec.Struct, forbid_unknown_fields=False):
    """A list, as the package hands it on."""

    name: str
    tools: list[dict[str, Any]]


class Said:
    """A tool server that says what a folder holds. Raises for what is of another type, as the package does."""

    address = "http://said.in/mcp"
    label = None

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def tools(self) -> tuple[str, list[ServerTool]]:
        told = msgspec.convert(json.loads((self._folder / "list").read_bytes()), Listed)
        if find_spec("mcp") is not None:
            import mcp_types as types

            page = types.ListToolsResult.model_validate({"tools": told.tools})
            return told.name, [ServerTool(one.name, one.description or "", one.input_schema) for one in page.tools]
        rows = [(one["name"], one.get("description") or "", one["inputSchema"]) for one in told.tools]
        return told.name, msgspec.convert(
            [dict(zip(ServerTool.__struct_fields__, row, strict=True)) for row in rows], list[ServerTool]
        )

    async def call(self, name: str, arguments: dict[str, Any]) -> CallResult:
        told = json.loads((self._folder / "result").read_bytes())
        if find_spec("mcp") is not None:
            import mcp_types as types

            from core_apis.tools.mcp_server import text_of

            result = types.CallToolResult.model_validate(told)
            return CallResult(error=text_of(result)) if result.is_error else CallResult(text_of(result))
        texts = [block.get("text", block["type"]) for block in told["content"]]
        return msgspec.convert({"error" if told["isError"] else "output": "\n".join(texts)}, CallResult)


def make_servers(folder: Path) -> None:
    """Write what a server says, and look that it is understood. Raises AssertionError."""
    (folder / "list").write_text(json.dumps(LIST))
    (folder / "result").write_text(json.dumps(RESULT))
    (folder / "arguments").write_text(json.dumps({"city": "Rome"}))
    assert read_servers(folder) == (2, True), "good answers are not understood"


def read_servers(folder: Path) -> tuple[int, bool]:
    """List and call; returns the number of tools, and whether the call had an output. Raises AssertionError for a result
    that is no text or too large, and for tools that a request cannot be sent with.
    """
    return asyncio.run(_asked(folder))


async def _asked(folder: Path) -> tuple[int, bool]:
    servers = ToolServers([Said(folder)], call_s=LIMIT_S, list_s=LIMIT_S)
    servers.start()
    try:
        offered = servers.offered
        written = (folder / "arguments").read_bytes().decode(errors="replace")
        label = offered[0].label if offered else "A_place"
        result = await servers.call(label, "weather", written)
    finally:
        await servers.close()
    text = result.output if result.error is None else result.error
    assert text is not None and len(text.encode()) <= MOST_RESULT, "a result is no text, or too large"
    if not offered:
        return 0, result.error is None
    packed(None, {}, offered)
    tools = offered[0].tools
    assert len(tools) <= MOST_TOOLS and len(msgspec.json.encode(tools)) <= MOST_LIST + 2 * MOST_TOOLS + 2
    try:
        shown_tools({"type": "mcp", "server_label": label}, offered, "tools[0]")
    except RequestError as error:
        raise AssertionError(f"a tool that is offered cannot be shown: {error}") from error
    return len(tools), result.error is None
