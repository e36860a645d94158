"""The output items of tool servers: their lists, and the calls that this server runs.

Owns: their events, in OpenAI's order. Never does: run a call. Called by: `core_apis.responses.output_items`.
"""

from __future__ import annotations

from collections.abc import Iterable

from core_apis.protocol.response_events import CallDeltaEvent, McpDoneEvent, McpEvent, ResponseEvent
from core_apis.protocol.response_objects import ItemStatus, McpCallItem, McpError, McpListItem, McpStatus, McpTool
from core_apis.responses.open_items import OpenItem
from core_apis.responses.tools import OfferedTool
from core_apis.tools.offered import CallResult, ServerTool


class OpenList(OpenItem):
    """A list of the tools of one server; it was made at the start of the server."""

    def __init__(self, response_id: str, index: int, label: str, tools: Iterable[ServerTool]) -> None:
        super().__init__("mcp_list_tools", response_id, index)
        self._tools = [McpTool(tool.name, tool.description, tool.input_schema) for tool in tools]
        self.item: McpListItem = McpListItem(self.id, label, [])

    def begin(self) -> list[ResponseEvent]:
        """Return the events of an empty list."""
        return [self._added(), self._of(McpEvent, "mcp_list_tools.in_progress")]

    def end(self, status: ItemStatus) -> list[ResponseEvent]:
        """Return the events of the whole list."""
        self.item = McpListItem(self.id, self.item.server_label, self._tools)
        return [self._of(McpEvent, "mcp_list_tools.completed"), self._done()]


class OpenMcpCall(OpenItem):
    """A call of a tool server. result: set before its end, if it ran."""

    def __init__(self, response_id: str, index: int, tool: OfferedTool) -> None:
        super().__init__("mcp_call", response_id, index)
        self.tool = tool
        self.result: CallResult | None = None
        self.item: McpCallItem = self._item("in_progress", "")

    def begin(self) -> list[ResponseEvent]:
        """Return the events of a call without arguments."""
        return [self._added(), self._of(McpEvent, "mcp_call.in_progress")]

    def add(self, text: str) -> list[ResponseEvent]:
        """Return the events of more arguments."""
        self._texts.append(text)
        return [self._of(CallDeltaEvent, "mcp_call_arguments.delta", delta=text)]

    def end(self, status: ItemStatus) -> list[ResponseEvent]:
        """Return the events of all arguments, the result and the whole call. A call that did not run is incomplete."""
        text = self._text()
        done = self._of(McpDoneEvent, "mcp_call_arguments.done", arguments=text)
        result = self.result
        if result is None:
            self.item = self._item("incomplete", text)
            return [done, self._done()]
        if result.error is not None:
            self.item = self._item("failed", text)
            self.item.error = McpError([{"type": "text", "text": result.error}])
            return [done, self._of(McpEvent, "mcp_call.failed"), self._done()]
        self.item = self._item("completed", text)
        self.item.output = result.output
        return [done, self._of(McpEvent, "mcp_call.completed"), self._done()]

    def _item(self, status: McpStatus, text: str) -> McpCallItem:
        return McpCallItem(self.id, status, self.tool.namespace or "", self.tool.name, text)
