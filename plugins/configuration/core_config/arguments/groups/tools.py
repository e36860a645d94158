"""Arguments about tools that the server runs. Owns: declarations only. Called by: schema."""

from typing import Annotated, ClassVar

import msgspec

from core.args.arg import Arg, ArgumentGroup


class ToolArgs(ArgumentGroup, frozen=True, kw_only=True):
    """Tools that the server runs."""

    place: ClassVar[int] = 175
    for_servers: ClassVar[bool] = True

    tool_server: Annotated[
        list[str],
        Arg(
            "MCP servers whose tools requests of /v1/responses may name, as [LABEL=]URL, such as "
            "http://127.0.0.1:9000/mcp (a path that ends in /sse: the older transport), or HOST:PORT, which means "
            "http://HOST:PORT/sse. This server calls the tools itself. Needs the package mcp.",
            commas=True,
            since="0.2.0",
        ),
    ] = msgspec.field(default_factory=list)
