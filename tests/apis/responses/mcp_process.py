"""A real MCP server of the `mcp` package: `python -m tests.apis.responses.mcp_process TRANSPORT PORT`."""

import asyncio
import sys

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("A place")


@server.tool()
def weather(city: str) -> str:
    """The weather of a city."""
    return f"WARM in {city}"


@server.tool()
def broken() -> str:
    """Always fails."""
    raise ToolError("It broke")


@server.tool()
def huge(num_bytes: int) -> str:
    """A long text."""
    return "x" * num_bytes


@server.tool()
async def hangs() -> str:
    """Never ends."""
    await asyncio.sleep(600)
    return "late"


@server.tool()
def numbers() -> dict[str, int]:
    """Numbers by name."""
    return {"one": 1}


if __name__ == "__main__":
    transport, port = sys.argv[1], int(sys.argv[2])
    if transport == "sse":
        server.run("sse", port=port)
    else:
        server.run("streamable-http", port=port, json_response=transport == "json")
