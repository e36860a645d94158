"""From the outputs of one choice to the events of its answer.

Owns: `AnswerParser`, and the count of its tokens of reasoning. Never does: know formats (`core.formats` does), or write an
API's bodies. Called by: the writers.
"""

from __future__ import annotations

from core.api.answer_events import AnswerEvent, CallEnd, ReasoningDelta, TextDelta
from core.api.outputs import CompletionOutput
from core.formats.response_parser import ResponseParser
from core.serving.preparation import PreparedChat


class AnswerParser:
    """One for each choice of an answer; it is given all outputs of that choice, deltas or one whole, in their order.

    num_calls: calls that have ended whole.
    cut:       whether the answer ended inside of a call.
    reasoning_tokens: of all tokens so far, those of reasoning.
    """

    def __init__(self, prepared: PreparedChat) -> None:
        self.prepared = prepared
        self.num_calls = 0
        self.cut = False
        self.reasoning_tokens = 0
        self._parser: ResponseParser | None = None
        if prepared.format is not None:
            self._parser = ResponseParser(
                prepared.format.row,
                prepared.tools,
                prepared.prompt_tail,
                special_tokens=prepared.format.special_tokens,
            )

    def push(self, completion: CompletionOutput) -> list[AnswerEvent]:
        """The events that new text completes; all that are left when the choice has ended."""
        if self._parser is None:
            return [TextDelta(completion.text)] if completion.text else []
        events = self._parser.push(completion.text, completion.specials)
        if completion.finish_reason is not None:
            events += self._parser.finish(complete=completion.finish_reason == "stop")
        self._count(completion, events)
        return events

    def finish_reason(self, completion: CompletionOutput) -> str | None:
        """The reason to report: `tool_calls` where the model stopped in order to call."""
        reason = completion.finish_reason
        return "tool_calls" if reason == "stop" and self.num_calls and not self.cut else reason

    def _count(self, completion: CompletionOutput, events: list[AnswerEvent]) -> None:
        thought = 0
        for event in events:
            if isinstance(event, ReasoningDelta):
                thought += len(event.text)
            elif isinstance(event, CallEnd):
                self.num_calls += event.complete
                self.cut = not event.complete
        if thought:
            share = min(1.0, thought / max(1, len(completion.text)))
            self.reasoning_tokens += round(share * len(completion.token_ids))
