"""Conversion of the outputs of an answer into the events of its response, and the response itself.

Owns: the first and the last events, the numbers of events, the status of the response, its usage. Never does: parse
text (`AnswerParser` does), send, or store. Called by: `core_apis.responses.run`, for streams and whole answers alike.

A whole answer is assembled from its events; there is no second code path.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

import msgspec

from core.api.errors import RequestError
from core_apis.answers.parsing import AnswerParser
from core_apis.errors import describe, ended_early
from core_apis.protocol.response_events import LifecycleEvent, ResponseEvent
from core_apis.protocol.response_objects import (
    IncompleteDetails,
    InputTokensDetails,
    OutputTokensDetails,
    ResponseFailure,
    ResponseObject,
    ResponseUsage,
    Status,
)
from core_apis.protocol.timings import timings_of
from core_apis.protocol.usage import UsageCounter
from core_apis.responses.hosted_calls import HostedCall, HostedCalls
from core_apis.responses.message_logprobs import MessageLogprobs
from core_apis.responses.output_items import OutputItems
from core_apis.responses.tools import ToolTable
from core_apis.tools.offered import CallResult, ServerTool
from core_formats.answers.events import AnswerEvent
from core_frontend.api.outputs import RequestOutput

ENDINGS: Mapping[str, Status] = MappingProxyType({"length": "incomplete"})
"""The status by finish reason; after any other reason except `abort`, the response is complete."""

FAILURES: Mapping[int, str] = MappingProxyType({400: "invalid_prompt", 429: "rate_limit_exceeded"})
"""OpenAI's codes by the HTTP status that a failure would have had; any other one is a server error."""

_encode = msgspec.json.Encoder().encode


class ResponseWriter:
    """The writer of one response.

    response: in its current state, without the item that is being written.
    logprobs: of messages, if they are wanted.
    times:    whether the response reports how long it took.
    hosted:   tools that the server runs, by the label of their server.
    calls:    calls that have to run before the response goes on.
    awaited:  the id of the one whose result the next events need.
    """

    def __init__(
        self,
        response: ResponseObject,
        parser: AnswerParser,
        items: OutputItems,
        logprobs: MessageLogprobs | None,
        *,
        times: bool = False,
        hosted: Mapping[str, list[ServerTool]] = MappingProxyType({}),
        tools: ToolTable | None = None,
    ) -> None:
        self.response = response
        self._parser = parser
        self._items = items
        self._logprobs = logprobs
        self._times = times
        self._usage = UsageCounter(details=True)
        self._number = 0
        self._hosted = hosted
        self._held = HostedCalls(tools or {})
        self._released: Iterator[tuple[AnswerEvent, str | None]] = iter(())
        self._waiting: AnswerEvent | None = None
        self._round = 0
        self._reasoning_tokens = 0
        self.calls: list[HostedCall] = []
        self.needs_client = False
        self.awaited: str | None = None
        response.output = items.whole

    @property
    def ended(self) -> bool:
        """Whether the last events have been returned."""
        return self.response.status not in ("queued", "in_progress")

    def begin(self) -> list[bytes]:
        """Return the events that precede any output."""
        events = self._written([self._lifecycle("created")])
        if self.response.status == "queued":
            events += self._written([self._lifecycle("queued")])
            self.response.status = "in_progress"
        return events + self._written([self._lifecycle("in_progress")]) + self.list_tools()

    def list_tools(self) -> list[bytes]:
        """Return the events of the lists of tools that the model was shown; only the first call does anything."""
        events: list[bytes] = []
        if not self._items.whole:
            for label, tools in self._hosted.items():
                events += self._written(self._items.list_tools(label, tools))
        return events

    def push(self, output: RequestOutput) -> list[bytes]:
        """Return the events of the next output, including the last events if it is the last output."""
        self._usage.add(self._round, output)
        if output.explain is not None:
            self.response.explain = output.explain
        if output.receipt is not None:
            self.response.receipt = output.receipt
        if output.energy is not None:
            self.response.energy = output.energy
        if self._times and output.finished:
            self.response.timings = timings_of(output, num_choices=1)
        events: list[bytes] = []
        for completion in output.outputs:
            if self._logprobs is not None:
                self._logprobs.take(completion)
            for event in self._parser.push(completion):
                if not (self._hosted and self._held.takes(event)):
                    events += self._written(self._items.add(event))
            if completion.finish_reason == "abort":  # no client has cancelled it: the server was paused, or sleeps
                events += self.fail(ended_early())
            elif completion.finish_reason is not None and self._held:
                events += self._hold(completion.finish_reason)
            elif completion.finish_reason is not None:
                events += self.end(ENDINGS.get(completion.finish_reason, "completed"))
        return events

    def resume(self, result: CallResult | None = None) -> list[bytes]:
        """Return the events up to the next one that needs a result. result: of the call that was awaited."""
        events: list[bytes] = []
        if self._waiting is not None:
            events += self._written(self._items.add(self._waiting, result))
        self._waiting = self.awaited = None
        for event, call_id in self._released:
            if call_id is not None and self.calls:
                self._waiting, self.awaited = event, call_id
                return events
            events += self._written(self._items.add(event))
        return events + self._written(self._items.end(complete=True)) if self.calls else events

    def next_round(self, parser: AnswerParser) -> None:
        """Continue with the outputs of a further run of the model."""
        self._reasoning_tokens += self._parser.reasoning_tokens
        self._parser = parser
        self._round += 1
        self.calls = []

    @property
    def num_output_tokens(self) -> int:
        """Return the number of tokens that the model has written so far."""
        return self._usage.completion_tokens

    def _hold(self, reason: str) -> list[bytes]:
        """Return the events at the end of a run with calls of tool servers: they run if the model ended by itself."""
        self.needs_client = self._held.has_client_calls()
        self.calls = self._held.calls() if reason == "stop" else []
        self._released = self._held.released()
        events = self.resume()
        return events if self.calls else events + self.end(ENDINGS.get(reason, "completed"))

    def fail(self, error: Exception) -> list[bytes]:
        """Return the last events of a response that failed."""
        _, told = describe(error)
        code = "server_error"
        if isinstance(error, RequestError):
            code = FAILURES.get(error.status, code)
        self.response.error = ResponseFailure(code, told.error.message)
        return self.end("failed")

    def end(self, status: Status) -> list[bytes]:
        """Return the last events: the end of the current item, then the end of the response."""
        events = self._written(self._items.finish(complete=status == "completed"))
        self.response.status = status
        self.response.usage = self._usage_so_far()
        if status == "completed":
            self.response.completed_at = int(time.time())
        if status == "incomplete":
            self.response.incomplete_details = IncompleteDetails("max_output_tokens")
        if status == "cancelled":
            return events  # by a client; no event exists for that, so the stream just ends
        return events + self._written([self._lifecycle(status)])

    def _lifecycle(self, what: str) -> LifecycleEvent:
        return LifecycleEvent(type=f"response.{what}", response=self.response)

    def _written(self, events: Iterable[ResponseEvent]) -> list[bytes]:
        blocks: list[bytes] = []
        for event in events:
            event.sequence_number = self._number
            self._number += 1
            blocks.append(b"event: " + event.type.encode() + b"\ndata: " + _encode(event) + b"\n\n")
        return blocks

    def _usage_so_far(self) -> ResponseUsage:
        counted = self._usage.usage()
        cached = sum(self._usage.cached_tokens.values())
        return ResponseUsage(
            input_tokens=counted.prompt_tokens,
            input_tokens_details=InputTokensDetails(cached),
            output_tokens=counted.completion_tokens,
            output_tokens_details=OutputTokensDetails(self._reasoning_tokens + self._parser.reasoning_tokens),
            total_tokens=counted.total_tokens,
        )
