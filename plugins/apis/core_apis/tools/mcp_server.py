"""The way to one MCP server, through the official `mcp` package, which is imported when a server is configured.

Owns: the transport of each address, and what of a result is text. Never does: limit time (`ToolServers` does), or check a
result against the schema that the same server sent: such a schema may take hours. Called by: `core_apis.tools.making`.

Each list and each call has a session of its own, so that a server which ends costs the calls in progress and no later one.
Protocol: https://modelcontextprotocol.io/specification.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import mcp_types as types
import msgspec
from mcp import ClientSession
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from core_apis.tools.limited_transport import limited_client
from core_apis.tools.offered import MOST_TOOLS, CallResult, ServerTool

MOST_PAGES: Final = 8
"""Maximum number of pages of a list of tools."""

_encode = msgspec.json.Encoder().encode


class McpServer:
    """One MCP server. url: of its endpoint. sse: whether it speaks the older transport, with events beside the calls.

    label: chosen by the operator; None: the server's own name counts.
    """

    def __init__(self, url: str, *, sse: bool, label: str | None) -> None:
        self.address = url
        self.label = label
        self._sse = sse

    async def tools(self) -> tuple[str, list[ServerTool]]:
        """Return the server's own name and its tools. Raises whatever the transport or the server does."""
        found: list[ServerTool] = []
        async with self._session() as session:
            started = await session.initialize()
            cursor: str | None = None
            for _ in range(MOST_PAGES):
                params = types.PaginatedRequestParams(cursor=cursor)
                page = await session.send_request(types.ListToolsRequest(params=params), types.ListToolsResult)
                found += [ServerTool(tool.name, tool.description or "", tool.input_schema) for tool in page.tools]
                cursor = page.next_cursor
                if cursor is None or len(found) > MOST_TOOLS:
                    break
        return started.server_info.name, found

    async def call(self, name: str, arguments: dict[str, Any]) -> CallResult:
        """Call a tool. Raises whatever the transport or the server does."""
        async with self._session() as session:
            await session.initialize()
            params = types.CallToolRequestParams(name=name, arguments=arguments)
            result = await session.send_request(types.CallToolRequest(params=params), types.CallToolResult)
        text = text_of(result)
        return CallResult(error=text or "The tool failed and said nothing.") if result.is_error else CallResult(text)

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[ClientSession]:
        if self._sse:
            async with (
                sse_client(self.address, httpx_client_factory=limited_client) as (reads, writes),
                ClientSession(reads, writes) as session,
            ):
                yield session
            return
        async with (
            limited_client() as client,
            streamable_http_client(self.address, http_client=client) as (reads, writes),
            ClientSession(reads, writes) as session,
        ):
            yield session


def text_of(result: types.CallToolResult) -> str:
    """Return a result as the text that the model reads; a part that is no text is named in its place."""
    parts: list[str] = []
    for block in result.content:
        if isinstance(block, types.TextContent):
            parts.append(block.text)
        elif isinstance(block, types.EmbeddedResource) and isinstance(block.resource, types.TextResourceContents):
            parts.append(block.resource.text)
        elif isinstance(block, types.ResourceLink):
            parts.append(str(block.uri))
        else:
            parts.append(f"[{block.type} left out: only text is read]")
    if not parts and result.structured_content is not None:
        return _encode(result.structured_content).decode()
    return "\n".join(parts)
