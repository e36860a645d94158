"""Conversion of the outputs of one choice into the events of its answer.

Owns: `AnswerParser`, and the count of reasoning tokens. Never does: know formats (`core_formats` does), or write an
API's bodies. Called by: the writers.
"""

from __future__ import annotations

from collections import deque
from random import Random

from core_apis.prepare.prepared import PreparedChat
from core_formats.answers.events import AnswerEvent, CallEnd, ReasoningDelta, TextDelta
from core_formats.answers.parser import ResponseParser
from core_frontend.api.outputs import CompletionOutput
from core_tokens.detokenizer import Span


class AnswerParser:
    """The parser of one choice of an answer. It receives all outputs of that choice, as deltas or as one whole, in
    order.

    choice:    index of the choice.
    num_calls: number of complete calls so far.
    cut:       whether the answer ended inside a call.
    reasoning_tokens: number of reasoning tokens among all tokens so far.
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
        """Return the events that new text completes, and all remaining events once the choice has ended."""
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
        """Return the reason to report: `tool_calls` if the model stopped in order to call a tool."""
        reason = completion.finish_reason
        return "tool_calls" if reason == "stop" and self.num_calls and not self.cut else reason

    def _push_by_token(self, parser: ResponseParser, completion: CompletionOutput) -> list[AnswerEvent]:
        """Push the tokens one by one, so that reasoning tokens can be counted; otherwise the same as the parser's
        `push`.
        """
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
        """Count one token by the events it caused.

        A token of reasoning whose text is held back, such as white space, gets its event together with a later token.
        Before reasoning begins, the token without an event is the marker.
        """
        self._num_held += 1
        if not news:
            return
        thinks = any(isinstance(event, ReasoningDelta) for event in news)
        if thinks:
            self.reasoning_tokens += self._num_held if self._thinks else 1
        self._thinks = thinks
        self._num_held = 0
