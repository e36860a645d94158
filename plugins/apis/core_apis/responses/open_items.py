"""The output item that is being written, from its first event to its last.

Owns: the events of each kind of item, in OpenAI's order, and the whole item at the end. Never does: number events, or
decide which item comes. Called by: `core_apis.responses.writer`.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec import UNSET

from core_apis.protocol.chat import TokenLogprob
from core_apis.protocol.response_events import (
    CallDeltaEvent,
    CustomDoneEvent,
    FunctionDoneEvent,
    ItemEvent,
    OfItem,
    PartEvent,
    ReasoningDeltaEvent,
    ReasoningDoneEvent,
    ResponseEvent,
    SummaryDeltaEvent,
    SummaryDoneEvent,
    SummaryPartEvent,
    TextDeltaEvent,
    TextDoneEvent,
)
from core_apis.protocol.response_objects import (
    CallItem,
    CustomCallItem,
    FunctionCallItem,
    ItemStatus,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    SummaryText,
)
from core_apis.responses.items import output_id
from core_apis.responses.reasoning import sealed
from core_apis.responses.tools import OfferedTool

ITEM_ADDED = "response.output_item.added"
ITEM_DONE = "response.output_item.done"
PART_ADDED = "content_part.added"
PART_DONE = "content_part.done"

_encode = msgspec.json.Encoder().encode


Event = TypeVar("Event", bound=OfItem)


class OpenItem:
    """An item that is being written. Its text goes to `add` piece by piece; `end` leaves the whole text in `item`.

    kind: of the item, for its id. index: of the item in the output.
    """

    item: OutputItem

    def __init__(self, kind: str, response_id: str, index: int) -> None:
        self.index = index
        self.id = output_id(kind, response_id, index)
        self._texts: list[str] = []

    def begin(self) -> list[ResponseEvent]:
        """Return the events that precede any text."""
        raise NotImplementedError

    def end(self, status: ItemStatus) -> list[ResponseEvent]:
        """Return the events that follow all text."""
        raise NotImplementedError

    def _text(self) -> str:
        """Return the whole text so far."""
        return "".join(self._texts)

    def _of(self, event: type[Event], kind: str, **fields: Any) -> Event:
        """Return an event within this item. kind: its type, after `response.`."""
        return event(type=f"response.{kind}", item_id=self.id, output_index=self.index, **fields)

    def _added(self) -> ResponseEvent:
        return ItemEvent(type=ITEM_ADDED, output_index=self.index, item=self.item)

    def _done(self) -> ResponseEvent:
        return ItemEvent(type=ITEM_DONE, output_index=self.index, item=self.item)


class OpenMessage(OpenItem):
    """A message item."""

    def __init__(self, response_id: str, index: int) -> None:
        super().__init__("message", response_id, index)
        self.item = MessageItem(self.id, "in_progress", [])
        self._logprobs: list[bytes] = []

    def begin(self) -> list[ResponseEvent]:
        """Return the events of an empty message with an empty text in it."""
        return [self._added(), self._of(PartEvent, PART_ADDED, part=OutputText(""))]

    def add(self, text: str, logprobs: list[TokenLogprob]) -> list[ResponseEvent]:
        """Return the events of more text, with the log probabilities of its tokens."""
        self._texts.append(text)
        if logprobs:
            self._logprobs.append(_encode(logprobs)[1:-1])
        return [self._of(TextDeltaEvent, "output_text.delta", delta=text, logprobs=logprobs)]

    def end(self, status: ItemStatus) -> list[ResponseEvent]:
        """Return the events of the whole text, the whole part and the whole message."""
        text = self._text()
        # All of the last four events contain the log probabilities, so they are serialized once.
        logprobs: Any = msgspec.Raw(b"[%b]" % b",".join(self._logprobs)) if self._logprobs else []
        part = OutputText(text, logprobs=logprobs)
        self.item = MessageItem(self.id, status, [part])
        done = self._of(TextDoneEvent, "output_text.done", text=text, logprobs=logprobs)
        return [done, self._of(PartEvent, PART_DONE, part=part), self._done()]


class OpenReasoning(OpenItem):
    """A reasoning item whose content is the model's reasoning. seals: also in the form that clients send back."""

    def __init__(self, response_id: str, index: int, *, seals: bool) -> None:
        super().__init__("reasoning", response_id, index)
        self.seals = seals
        self.item = ReasoningItem(self.id, "in_progress", [], content=[])

    def begin(self) -> list[ResponseEvent]:
        """Return the events of an empty item with an empty text in it."""
        return [self._added(), self._of(PartEvent, PART_ADDED, part=ReasoningText(""))]

    def add(self, text: str) -> list[ResponseEvent]:
        """Return the events of more reasoning text."""
        self._texts.append(text)
        return [self._of(ReasoningDeltaEvent, "reasoning_text.delta", delta=text)]

    def end(self, status: ItemStatus) -> list[ResponseEvent]:
        """Return the events of the whole text, the whole part and the whole item."""
        text = self._text()
        part = ReasoningText(text)
        self.item = ReasoningItem(self.id, status, [], content=[part])
        self.item.encrypted_content = sealed(text) if self.seals else UNSET
        done = self._of(ReasoningDoneEvent, "reasoning_text.done", text=text)
        return [done, self._of(PartEvent, PART_DONE, part=part), self._done()]


class OpenSummary(OpenItem):
    """A reasoning item with a summary: for clients that show nothing else. The text is not shortened."""

    def __init__(self, response_id: str, index: int, *, seals: bool) -> None:
        super().__init__("reasoning", response_id, index)
        self.seals = seals
        self.item = ReasoningItem(self.id, "in_progress", [])

    def begin(self) -> list[ResponseEvent]:
        """Return the events of an empty item with an empty summary in it."""
        return [self._added(), self._of(SummaryPartEvent, "reasoning_summary_part.added", part=SummaryText(""))]

    def add(self, text: str) -> list[ResponseEvent]:
        """Return the events of more summary text."""
        self._texts.append(text)
        return [self._of(SummaryDeltaEvent, "reasoning_summary_text.delta", delta=text)]

    def end(self, status: ItemStatus) -> list[ResponseEvent]:
        """Return the events of the whole text, the whole part and the whole item."""
        text = self._text()
        part = SummaryText(text)
        self.item = ReasoningItem(self.id, status, [part])
        self.item.encrypted_content = sealed(text) if self.seals else UNSET
        text_done = self._of(SummaryDoneEvent, "reasoning_summary_text.done", text=text)
        return [text_done, self._of(SummaryPartEvent, "reasoning_summary_part.done", part=part), self._done()]


class OpenCall(OpenItem):
    """A call item. tool: as the client knows it. call_id: the id that the call's output has to name."""

    def __init__(self, response_id: str, index: int, tool: OfferedTool, call_id: str) -> None:
        self.tool = tool
        self.call_id = call_id
        self._is_custom = tool.kind == "custom"
        super().__init__("custom_tool_call" if self._is_custom else "function_call", response_id, index)
        self.item: CallItem = self._item("in_progress", "")

    def begin(self) -> list[ResponseEvent]:
        """Return the events of a call without arguments."""
        return [self._added()]

    def add(self, text: str) -> list[ResponseEvent]:
        """Return the events of more arguments or input."""
        self._texts.append(text)
        kind = "custom_tool_call_input.delta" if self._is_custom else "function_call_arguments.delta"
        return [self._of(CallDeltaEvent, kind, delta=text)]

    def end(self, status: ItemStatus) -> list[ResponseEvent]:
        """Return the events of all arguments and the whole call."""
        text = self._text()
        self.item = self._item(status, text)
        done: ResponseEvent
        if self._is_custom:
            done = self._of(CustomDoneEvent, "custom_tool_call_input.done", input=text)
        else:
            done = self._of(FunctionDoneEvent, "function_call_arguments.done", name=self.tool.name, arguments=text)
        return [done, self._done()]

    def _item(self, status: ItemStatus, text: str) -> CallItem:
        kind = CustomCallItem if self._is_custom else FunctionCallItem
        item = kind(self.id, status, self.call_id, self.tool.name, text)
        item.namespace = self.tool.namespace or UNSET
        return item
