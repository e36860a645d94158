"""Construction of the tool servers of `--tool-server`.

Owns: the meaning of an address, and the sentence for a missing package. Never does: connect. Called by: `core_apis.app`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib.util import find_spec
from urllib.parse import urlsplit

from core.api.errors import PluginError
from core_apis.tools.tool_servers import ToolServers
from core_config.served.tool_servers import address_of


def tool_servers(given: Sequence[str]) -> ToolServers | None:
    """Return the tool servers of an operator, with their lists; None: there are none. Raises PluginError."""
    if not given:
        return None
    if find_spec("mcp") is None or find_spec("mcp_types") is None:
        raise PluginError(
            "--tool-server needs the package mcp, version 2.3 or later, which is not installed: "
            "pip install 'core-engine-apis[mcp]'."
        )
    from core_apis.tools.mcp_server import McpServer

    # The package logs what it cannot read whole, up to a megabyte each; a call that fails is logged in one line here.
    logging.getLogger("mcp").setLevel(logging.CRITICAL)
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    connections: list[McpServer] = []
    for each in given:
        label, url = address_of(each)
        sse = urlsplit(url).path.rstrip("/").endswith("/sse")
        connections.append(McpServer(url, sse=sse, label=label))
    servers = ToolServers(connections)
    servers.start()
    return servers
