"""The output item that is being written, from its first event to its last.

Owns: the events of each kind of item, in OpenAI's order, and the whole item at the end. Never does: number events, or
decide which item comes. Called by: `core_apis.responses.writer`.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec
from msgspec import UNSET

from core_apis.protocol.chat import TokenLogprob
from core_apis.protocol.response_events import (
    CallDeltaEvent,
    CustomDoneEvent,
    FunctionDoneEvent,
    ItemEvent,
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
PART_ADDED = "response.content_part.added"
PART_DONE = "response.content_part.done"

_encode = msgspec.json.Encoder().encode


class OpenItem(Protocol):
    """An item that is being written. Its text goes to `add` piece by piece; `end` leaves the whole text in `item`."""

    @property
    def item(self) -> OutputItem:
        """Return the item in its current state."""
        ...

    def begin(self) -> list[ResponseEvent]:
        """Return the events that precede any text."""
        ...

    def end(self, status: ItemStatus) -> list[ResponseEvent]:
        """Return the events that follow all text."""
        ...


class OpenMessage:
    """A message item. index: of the item in the output."""

    def __init__(self, response_id: str, index: int) -> None:
        self.index = index
        self.id = output_id("message", response_id, index)
        self.item = MessageItem(self.id, "in_progress", [])
        self._texts: list[str] = []
        self._logprobs: list[bytes] = []

    def begin(self) -> list[ResponseEvent]:
        """Return the events of an empty message with an empty text in it."""
        return [
            ItemEvent(type=ITEM_ADDED, output_index=self.index, item=self.item),
            PartEvent(type=PART_ADDED, item_id=self.id, output_index=self.index, part=OutputText("")),
        ]

    def add(self, text: str, logprobs: list[TokenLogprob]) -> list[ResponseEvent]:
        """Return the events of more text, with the log probabilities of its tokens."""
        self._texts.append(text)
        if logprobs:
            self._logprobs.append(_encode(logprobs)[1:-1])
        delta = TextDeltaEvent(
            type="response.output_text.delta",
            item_id=self.id,
            output_index=self.index,
            delta=text,
            logprobs=logprobs,
        )
        return [delta]

    def end(self, status: ItemStatus) -> list[ResponseEvent]:
        """Return the events of the whole text, the whole part and the whole message."""
        text = "".join(self._texts)
        # All of the last four events contain the log probabilities, so they are serialized once.
        logprobs: Any = msgspec.Raw(b"[%b]" % b",".join(self._logprobs)) if self._logprobs else []
        part = OutputText(text, logprobs=logprobs)
        self.item = MessageItem(self.id, status, [part])
        done = TextDoneEvent(
            type="response.output_text.done",
            item_id=self.id,
            output_index=self.index,
            text=text,
            logprobs=logprobs,
        )
        return [
            done,
            PartEvent(type=PART_DONE, item_id=self.id, output_index=self.index, part=part),
            ItemEvent(type=ITEM_DONE, output_index=self.index, item=self.item),
        ]


class OpenReasoning:
    """A reasoning item whose content is the model's reasoning. seals: also in the form that clients send back."""

    def __init__(self, response_id: str, index: int, *, seals: bool) -> None:
        self.index = index
        self.seals = seals
        self.id = output_id("reasoning", response_id, index)
        self.item = ReasoningItem(self.id, "in_progress", [], content=[])
        self._texts: list[str] = []

    def begin(self) -> list[ResponseEvent]:
        """Return the events of an empty item with an empty text in it."""
        return [
            ItemEvent(type=ITEM_ADDED, output_index=self.index, item=self.item),
            PartEvent(type=PART_ADDED, item_id=self.id, output_index=self.index, part=ReasoningText("")),
        ]

    def add(self, text: str) -> list[ResponseEvent]:
        """Return the events of more reasoning text."""
        self._texts.append(text)
        delta = ReasoningDeltaEvent(
            type="response.reasoning_text.delta", item_id=self.id, output_index=self.index, delta=text
        )
        return [delta]

    def end(self, status: ItemStatus) -> list[ResponseEvent]:
        """Return the events of the whole text, the whole part and the whole item."""
        text = "".join(self._texts)
        part = ReasoningText(text)
        self.item = ReasoningItem(self.id, status, [], content=[part])
        self.item.encrypted_content = sealed(text) if self.seals else UNSET
        done = ReasoningDoneEvent(
            type="response.reasoning_text.done", item_id=self.id, output_index=self.index, text=text
        )
        return [
            done,
            PartEvent(type=PART_DONE, item_id=self.id, output_index=self.index, part=part),
            ItemEvent(type=ITEM_DONE, output_index=self.index, item=self.item),
        ]


class OpenSummary:
    """A reasoning item with a summary: for clients that show nothing else. The text is not shortened."""

    def __init__(self, response_id: str, index: int, *, seals: bool) -> None:
        self.index = index
        self.seals = seals
        self.id = output_id("reasoning", response_id, index)
        self.item = ReasoningItem(self.id, "in_progress", [])
        self._texts: list[str] = []

    def begin(self) -> list[ResponseEvent]:
        """Return the events of an empty item with an empty summary in it."""
        part = SummaryPartEvent(
            type="response.reasoning_summary_part.added",
            item_id=self.id,
            output_index=self.index,
            part=SummaryText(""),
        )
        return [ItemEvent(type=ITEM_ADDED, output_index=self.index, item=self.item), part]

    def add(self, text: str) -> list[ResponseEvent]:
        """Return the events of more summary text."""
        self._texts.append(text)
        delta = SummaryDeltaEvent(
            type="response.reasoning_summary_text.delta", item_id=self.id, output_index=self.index, delta=text
        )
        return [delta]

    def end(self, status: ItemStatus) -> list[ResponseEvent]:
        """Return the events of the whole text, the whole part and the whole item."""
        text = "".join(self._texts)
        part = SummaryText(text)
        self.item = ReasoningItem(self.id, status, [part])
        self.item.encrypted_content = sealed(text) if self.seals else UNSET
        text_done = SummaryDoneEvent(
            type="response.reasoning_summary_text.done", item_id=self.id, output_index=self.index, text=text
        )
        part_done = SummaryPartEvent(
            type="response.reasoning_summary_part.done", item_id=self.id, output_index=self.index, part=part
        )
        return [text_done, part_done, ItemEvent(type=ITEM_DONE, output_index=self.index, item=self.item)]


class OpenCall:
    """A call item. tool: as the client knows it. call_id: the id that the call's output has to name."""

    def __init__(self, response_id: str, index: int, tool: OfferedTool, call_id: str) -> None:
        self.index = index
        self.tool = tool
        self.call_id = call_id
        kind = "custom_tool_call" if tool.kind == "custom" else "function_call"
        self.id = output_id(kind, response_id, index)
        self._texts: list[str] = []
        self.item: CallItem = self._item("in_progress", "")

    def begin(self) -> list[ResponseEvent]:
        """Return the events of a call without arguments."""
        return [ItemEvent(type=ITEM_ADDED, output_index=self.index, item=self.item)]

    def add(self, text: str) -> list[ResponseEvent]:
        """Return the events of more arguments or input."""
        self._texts.append(text)
        custom = self.tool.kind == "custom"
        kind = "response.custom_tool_call_input.delta" if custom else "response.function_call_arguments.delta"
        return [CallDeltaEvent(type=kind, item_id=self.id, output_index=self.index, delta=text)]

    def end(self, status: ItemStatus) -> list[ResponseEvent]:
        """Return the events of all arguments and the whole call."""
        text = "".join(self._texts)
        self.item = self._item(status, text)
        return [self._done(text), ItemEvent(type=ITEM_DONE, output_index=self.index, item=self.item)]

    def _done(self, text: str) -> ResponseEvent:
        if self.tool.kind == "custom":
            return CustomDoneEvent(
                type="response.custom_tool_call_input.done", item_id=self.id, output_index=self.index, input=text
            )
        return FunctionDoneEvent(
            type="response.function_call_arguments.done",
            item_id=self.id,
            output_index=self.index,
            name=self.tool.name,
            arguments=text,
        )

    def _item(self, status: ItemStatus, text: str) -> CallItem:
        kind = CustomCallItem if self.tool.kind == "custom" else FunctionCallItem
        item = kind(self.id, status, self.call_id, self.tool.name, text)
        item.namespace = self.tool.namespace or UNSET
        return item
