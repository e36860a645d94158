"""Conversion of the outputs of an answer into the events of its response, and the response itself.

Owns: the first and the last events, the numbers of events, the status of the response, its usage. Never does: parse
text (`AnswerParser` does), send, or store. Called by: `core_apis.responses.run`, for streams and whole answers alike.

A whole answer is assembled from its events; there is no second code path.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
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
from core_apis.responses.message_logprobs import MessageLogprobs
from core_apis.responses.output_items import OutputItems
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
    """

    def __init__(
        self,
        response: ResponseObject,
        parser: AnswerParser,
        items: OutputItems,
        logprobs: MessageLogprobs | None,
        *,
        times: bool = False,
    ) -> None:
        self.response = response
        self._parser = parser
        self._items = items
        self._logprobs = logprobs
        self._times = times
        self._usage = UsageCounter(details=True)
        self._number = 0
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
        return events + self._written([self._lifecycle("in_progress")])

    def push(self, output: RequestOutput) -> list[bytes]:
        """Return the events of the next output, including the last events if it is the last output."""
        self._usage.add(0, output)
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
                events += self._written(self._items.add(event))
            if completion.finish_reason == "abort":  # no client has cancelled it: the server was paused, or sleeps
                events += self.fail(ended_early())
            elif completion.finish_reason is not None:
                events += self.end(ENDINGS.get(completion.finish_reason, "completed"))
        return events

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
            output_tokens_details=OutputTokensDetails(self._parser.reasoning_tokens),
            total_tokens=counted.total_tokens,
        )
