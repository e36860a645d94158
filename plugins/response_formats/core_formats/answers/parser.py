"""The incremental parser of an answer: from text to events, by a row.

Owns: `ResponseParser`: reasoning, text, calls, and the text between them. Never does: know the format itself, which is
the row's. Called by: the server's answer parsing, `LLM.chat`.

Any division of the text into pieces gives the same events, except for the boundaries within texts of one kind. Only the
possible beginning of a marker, a call's header up to its name, and values whose type depends on their end are held
back.

With markers around it a call is a call whatever its name is: clients answer that there is no such tool, and the model
can react to that. Without markers only the name of a tool makes it one. Without tools the markers of calls are text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from random import Random

from core_formats.answers.beginning import begins_inside
from core_formats.answers.call_ids import call_ids
from core_formats.answers.events import AnswerEvent
from core_formats.answers.reader import TOKEN_OPEN, TOKEN_SHUT, Literals, Reader, Reading, literals
from core_formats.answers.sink import AnswerSink, Passage
from core_formats.calls.kinds import READERS, chosen
from core_formats.calls.reading import CallReading
from core_formats.markers import FormMarkers, row_markers
from core_formats.response_format import ResponseFormat
from core_formats.tool_spec import ToolSpec


class ResponseParser:
    """The parser of one answer.

    row:            the format.
    tools:          that the model may call; none: no calls are looked for.
    prompt_tail:    the end of the prompt: what the template wrote after the last message is enough.
    new_id:         makes the id of a call that has none; None: ids of the row's form, drawn at random.
    special_tokens: of the vocabulary. Their places in the text are given to `push`.
    draw:           what random ids are drawn from; None: the system.
    resumed:        the prompt ends within the answer's own reasoning or text, so white space at the beginning belongs to it.
    """

    def __init__(
        self,
        row: ResponseFormat,
        tools: Sequence[ToolSpec] = (),
        prompt_tail: str = "",
        new_id: Callable[[], str] | None = None,
        special_tokens: Collection[str] = (),
        resumed: bool = False,
        draw: Random | None = None,
    ) -> None:
        self._markers = row_markers(row, frozenset(special_tokens))
        self._tools = {tool.name: tool for tool in tools}
        self._reader = Reader()
        self._sink = AnswerSink(self._tools, call_ids(row.ids, new_id, draw))
        self._complete = False
        self._in_section = False
        self._unclosed: tuple[str, ...] = ()
        self._calling = bool(tools)
        self._opens = tuple(form.open for form in self._markers.marked) if tools else ()
        self._call_marks = (self._markers.section_open, *self._opens) if tools and row.section else self._opens
        self._reading = self._answer(begins_inside(row, prompt_tail), resumed)

    def push(self, text: str, specials: Sequence[tuple[int, int]] = ()) -> list[AnswerEvent]:
        """Parse more text and return the events that it completes.

        text: detokenized, special tokens kept.
        specials: (start, end) of those special tokens in this text, in order.
        """
        self._reader.give(_with_places(text, specials) if specials else text)
        next(self._reading, None)
        return self._sink.taken()

    def finish(self, complete: bool = True) -> list[AnswerEvent]:
        """Return the remaining events. complete: the model ended by itself instead of being cut off."""
        self._complete = complete
        self._reader.ended = True
        for _ in self._reading:
            pass
        return self._sink.taken()

    def _answer(self, inside: bool, resumed: bool) -> Reading[None]:
        if inside:
            yield from self._reasoning(again=not resumed, resumed=resumed)
        elif not resumed:
            yield from self._bare_call()
        while True:
            marker = yield from self._reader.until(self._wanted(), self._sink.text.put)
            if not marker:
                self._sink.text.at_end()
                return
            yield from self._at(marker)

    def _wanted(self) -> Literals:
        """Return the markers that are meaningful within text."""
        markers = self._markers
        closes = (markers.section_close,) if self._in_section else ()
        return literals(*markers.reasoning_open, *markers.dropped, *self._call_marks, *closes, *self._unclosed)

    def _at(self, marker: str) -> Reading[None]:
        """Continue after a marker found in text."""
        text = self._sink.text
        if marker in self._call_marks:
            yield from self._call(marker, text)
        elif marker in self._markers.reasoning_open and self._may_reason():
            text.at_marker()
            yield from self._reasoning(again=False)
        elif marker in self._markers.reasoning_open:
            text.put(marker)
        else:
            self._in_section = self._in_section and marker != self._markers.section_close
            self._unclosed = tuple(close for close in self._unclosed if close != marker)
            text.at_marker()
            yield from self._bare_call()

    def _may_reason(self) -> bool:
        reasoning = self._markers.row.reasoning
        return not self._sink.text.emitted or (reasoning is not None and reasoning.anywhere)

    def _reasoning(self, again: bool, resumed: bool = False) -> Reading[None]:
        """Read to the end of reasoning.

        again: the marker before it may come although it stands in the prompt.
        resumed: reasoning stands there, too.
        """
        reader = self._reader
        markers = self._markers
        passage = self._sink.reasoning
        if not resumed:
            passage.at_marker()
        if again:
            yield from reader.skip()
            yield from reader.take(literals(*markers.reasoning_open))
        while True:
            marker = yield from reader.until(literals(*markers.reasoning_close, *self._call_marks), passage.put)
            if not marker:
                passage.at_end()
                return
            if marker in markers.reasoning_close:
                passage.at_marker()
                self._sink.text.at_marker()
                yield from self._bare_call()
                return
            if (yield from self._call(marker, passage)):
                return

    def _bare_call(self) -> Reading[None]:
        """Read a call without a marker, where one is allowed: at the beginning of a text."""
        if not self._calling or not self._markers.bare:
            return
        reader = self._reader
        reader.mark = reader.at
        yield from reader.skip()
        yield from self._body(self._markers.bare, self._sink.text)

    def _call(self, marker: str, passage: Passage) -> Reading[bool]:
        """Read the calls after a marker; anything that is not a call goes to `passage`. True: there was a call."""
        reader = self._reader
        reader.mark = reader.at - len(marker)
        begun = self._sink.num_calls
        in_section = marker == self._markers.section_open
        if in_section:
            yield from reader.skip()
            marker = yield from reader.take(literals(*self._opens))
        if marker:
            yield from self._body(self._markers.forms_opened_by(marker), passage)
        else:
            self._give_back(passage)
        called = self._sink.num_calls > begun
        self._in_section = self._in_section or (in_section and called)
        return called

    def _body(self, forms: tuple[FormMarkers, ...], passage: Passage) -> Reading[None]:
        """Read the body of a call in one of these forms, and the marker after it."""
        reader = self._reader
        begun = self._sink.num_calls
        form = yield from chosen(forms, reader)
        closed = True
        if form is not None:
            stops = (*self._call_marks, *form.closes, self._markers.section_close)
            reading = CallReading(reader, self._sink, form, self._tools, stops, lambda: not self._complete)
            closed = yield from READERS[form.form.kind](reading)
        self._give_back(passage)
        if form is None or self._sink.num_calls == begun:
            return
        if closed:
            return
        reader.mark = reader.at
        yield from reader.skip()
        if form.form.fence and (yield from reader.take(literals("```"))):
            reader.mark = reader.at
            yield from reader.skip()
        if not (yield from reader.take(form.close)):
            self._unclosed = form.closes
            reader.at = reader.mark  # the white space belongs to the following text
        reader.mark = None

    def _give_back(self, passage: Passage) -> None:
        """Return everything read since the mark to the text: it was not a call."""
        reader = self._reader
        if reader.mark is None:
            return
        text = reader.text[reader.mark : reader.at]
        reader.mark = None
        passage.put(text)


def _with_places(text: str, specials: Sequence[tuple[int, int]]) -> str:
    """Return the text with each special token enclosed in `TOKEN_OPEN` and `TOKEN_SHUT`."""
    pieces: list[str] = []
    before = 0
    for start, end in specials:
        pieces += (text[before:start], TOKEN_OPEN, text[start:end], TOKEN_SHUT)
        before = end
    pieces.append(text[before:])
    return "".join(pieces)
