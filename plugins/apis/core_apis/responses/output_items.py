"""Conversion of the events of an answer into the items of a response, one after the other.

Owns: where an item begins and ends, and which white space belongs to no item. Never does: number or write events.
Called by: `core_apis.responses.writer`.
"""

from __future__ import annotations

from core_apis.protocol.response_events import ResponseEvent
from core_apis.protocol.response_objects import OutputItem
from core_apis.responses.mcp_items import OpenList, OpenMcpCall
from core_apis.responses.message_logprobs import MessageLogprobs
from core_apis.responses.open_items import OpenCall, OpenItem, OpenMessage, OpenReasoning, OpenSummary
from core_apis.responses.tools import OfferedTool, ToolTable
from core_apis.tools.offered import CallResult, ServerTool
from core_formats.answers.events import AnswerEvent, ArgumentsDelta, CallStart, ReasoningDelta, TextDelta


class OutputItems:
    """The items of one response. whole: those that have ended. num_listed: how many of them are lists of tools.

    summarized: whether reasoning is reported as a summary. sealed: whether it also comes in the form that clients send
        back.
    """

    def __init__(
        self,
        response_id: str,
        tools: ToolTable,
        *,
        summarized: bool,
        sealed: bool,
        logprobs: MessageLogprobs | None = None,
    ) -> None:
        self._response_id = response_id
        self.whole: list[OutputItem] = []
        self.num_listed = 0
        self._tools = tools
        self._summarized = summarized
        self._sealed = sealed
        self._logprobs = logprobs
        self._open: OpenItem | None = None
        self._space = ""

    def list_tools(self, label: str, tools: list[ServerTool]) -> list[ResponseEvent]:
        """Return the events of the list of a tool server's tools."""
        events = self._begin(OpenList(self._response_id, len(self.whole), label, tools))
        self.num_listed += 1
        return events + self.end(complete=True)

    def add(self, event: AnswerEvent, result: CallResult | None = None) -> list[ResponseEvent]:
        """Return the events that an event of the answer adds. result: of the call that the event ends, if it ran here."""
        if isinstance(event, TextDelta):
            return self._text(event.text)
        self._space = ""  # between items it belongs to no item
        if self._logprobs is not None:
            self._logprobs.drop()
        if isinstance(event, ReasoningDelta):
            return self._reason(event.text)
        if isinstance(event, CallStart):
            tool = self._tools.get(event.name) or OfferedTool(event.name, "function")
            events = self.end(complete=True)
            index = len(self.whole)
            if tool.kind == "mcp":
                return events + self._begin(OpenMcpCall(self._response_id, index, tool))
            return events + self._begin(OpenCall(self._response_id, index, tool, event.id))
        call = self._open
        assert isinstance(call, OpenCall | OpenMcpCall), "arguments of a call that has not begun"
        if isinstance(event, ArgumentsDelta):
            return call.add(event.text)
        if isinstance(call, OpenMcpCall):
            call.result = result
        return self.end(complete=event.complete)

    def finish(self, *, complete: bool) -> list[ResponseEvent]:
        """Return the events at the end of the answer. complete: whether it was not truncated."""
        if complete and self._open is None and len(self.whole) == self.num_listed:
            message = OpenMessage(self._response_id, len(self.whole))
            return [*self._begin(message), *self._say(message, self._space, begins=True), *self.end(complete=True)]
        return self.end(complete=complete)

    def end(self, *, complete: bool) -> list[ResponseEvent]:
        """End the current item, if there is one, and return its events."""
        item = self._open
        if item is None:
            return []
        events = item.end("completed" if complete else "incomplete")
        self.whole.append(item.item)
        self._open = None
        return events

    def _begin(self, item: OpenItem) -> list[ResponseEvent]:
        self._open = item
        return item.begin()

    def _text(self, text: str) -> list[ResponseEvent]:
        if isinstance(self._open, OpenMessage):
            return self._say(self._open, text, begins=False)
        text = self._space + text
        if not text.strip():
            self._space = text  # a message begins only if text follows
            return []
        self._space = ""
        events = self.end(complete=True)
        message = OpenMessage(self._response_id, len(self.whole))
        return [*events, *self._begin(message), *self._say(message, text, begins=True)]

    def _say(self, message: OpenMessage, text: str, *, begins: bool) -> list[ResponseEvent]:
        if not text:
            return []
        logprobs = [] if self._logprobs is None else self._logprobs.of(text, begins=begins)
        return message.add(text, logprobs)

    def _reason(self, text: str) -> list[ResponseEvent]:
        reasoning = self._open
        if isinstance(reasoning, OpenReasoning | OpenSummary):
            return reasoning.add(text)
        events = self.end(complete=True)
        index = len(self.whole)
        kind = OpenSummary if self._summarized else OpenReasoning
        new = kind(self._response_id, index, seals=self._sealed)
        return [*events, *self._begin(new), *new.add(text)]
