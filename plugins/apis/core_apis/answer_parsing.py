"""From the outputs of one choice to the events of its answer.

Owns: `AnswerParser`, and the count of its tokens of reasoning. Never does: know formats (`core_formats` does), or write an
API's bodies. Called by: the writers.
"""

from __future__ import annotations

from collections import deque
from random import Random

from core_apis.prepared import PreparedChat
from core_formats.answer_events import AnswerEvent, CallEnd, ReasoningDelta, TextDelta
from core_formats.response_parser import ResponseParser
from core_frontend.api.outputs import CompletionOutput
from core_tokens.detokenizer import Span


class AnswerParser:
    """One for each choice of an answer; it is given all outputs of that choice, deltas or one whole, in their order.

    choice:    its number.
    num_calls: calls that have ended whole.
    cut:       whether the answer ended inside of a call.
    reasoning_tokens: of all tokens so far, those of reasoning.
    """

    def __init__(self, prepared: PreparedChat, choice: int = 0) -> None:
        self.prepared = prepared
        self.num_calls = 0
        self.cut = False
        self.reasoning_tokens = 0
        self._num_held = 0
        self._thinks = False
        self._counts = False
        self._parser: ResponseParser | None = None
        if prepared.format is not None:
            self._counts = prepared.format.row.reasoning is not None
            self._parser = ResponseParser(
                prepared.format.row,
                prepared.tools,
                prepared.prompt_tail,
                special_tokens=prepared.format.special_tokens,
                resumed=prepared.resumed,
                draw=None if prepared.id_seed is None else Random(f"{prepared.id_seed} {choice}"),
            )

    def push(self, completion: CompletionOutput) -> list[AnswerEvent]:
        """The events that new text completes; all that are left when the choice has ended."""
        if self._parser is None:
            return [TextDelta(completion.text)] if completion.text else []
        if self._counts:
            events = self._push_by_token(self._parser, completion)
        else:
            events = self._parser.push(completion.text, completion.specials)
        if completion.finish_reason is not None:
            events += self._parser.finish(complete=completion.finish_reason == "stop")
        for event in events:
            if isinstance(event, CallEnd):
                self.num_calls += event.complete
                self.cut = not event.complete
        return events

    def finish_reason(self, completion: CompletionOutput) -> str | None:
        """The reason to report: `tool_calls` where the model stopped in order to call."""
        reason = completion.finish_reason
        return "tool_calls" if reason == "stop" and self.num_calls and not self.cut else reason

    def _push_by_token(self, parser: ResponseParser, completion: CompletionOutput) -> list[AnswerEvent]:
        """As the parser's `push`, and count tokens of reasoning."""
        events: list[AnswerEvent] = []
        specials = deque(completion.specials)
        start = 0
        for end in completion.token_ends:
            inside: list[Span] = []
            while specials and specials[0][1] <= end:
                first, last = specials.popleft()
                inside.append((first - start, last - start))
            news = parser.push(completion.text[start:end], inside)
            self._count(news)
            events += news
            start = end
        rest = [(first - start, last - start) for first, last in specials]
        return events + parser.push(completion.text[start:], rest)

    def _count(self, news: list[AnswerEvent]) -> None:
        """Count one token. One within reasoning whose text is held back, such as white space, has its event with a later one;
        before reasoning it is the marker."""
        self._num_held += 1
        if not news:
            return
        thinks = any(isinstance(event, ReasoningDelta) for event in news)
        if thinks:
            self.reasoning_tokens += self._num_held if self._thinks else 1
        self._thinks = thinks
        self._num_held = 0
