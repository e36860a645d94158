"""Why a prompt does not begin as an earlier one of the same tenant did.

Owns: the causes, and the advice on each. Never does: render, tokenize, or find the earlier prompt
among several (`core_apis.histories.memory` does). Called by: the memory of histories, `core kv audit`.
"""

from __future__ import annotations

import re

from core_apis.histories.trace import CHUNK, History, Piece, Trace, num_common
from core_frontend.api.explanation import Change

_CLOSING = re.compile(r"</[a-z_:]*think[a-z_]*>|\[/THINK\]|<channel\|>|<\|close\|>think")
_MARKERS = re.compile(r"<[^<>\s]{1,40}>|\[/?[A-Z_]{2,20}\]|\b(?:analysis|final|commentary|assistant|response|think)\b")
"""What stands between reasoning and content in the formats of models, and what both may begin with."""
AROUND = 40
"""Number of characters shown on either side of the place."""

KEEP_REASONING = (
    "The template leaves out reasoning of earlier turns. If it has a variable that keeps it, set that with "
    "chat_template_kwargs (such as preserve_thinking, or clear_thinking: false); otherwise turns compute from here on again."
)
RETURN_REASONING = "Return the answer's reasoning_content with the message, as it was received."
TOOLS_ORDER = "The same tools came in another order: send them in one order in all turns."
TOOLS_OTHER = (
    "Other tools were offered than before: offer all of them from the first turn on, and limit calls with tool_choice."
)
SETTINGS = (
    "The variables of the template differ from those of the earlier turn: send the same chat_template_kwargs each turn."
)
ARGUMENTS = (
    "The template writes the arguments of calls in another form than the model. Nothing in a request changes that; a template "
    "that shows arguments unchanged does (--chat-template)."
)
TRIMMED = "The template trims or rewrites this text: send it as the template shows it, without white space at its ends."
MOVED = (
    "The template itself writes other words here than for the earlier turn, such as a date. If it has a variable for them, set "
    "it with chat_template_kwargs."
)
GENERATION = (
    "The template begins an answer otherwise than it shows a finished one, such as with empty reasoning. If it has a variable "
    "for that, set it with chat_template_kwargs."
)
CHANGED = "Send earlier messages exactly as they were sent, and answers as they were received."
RETOKENIZED = (
    "The text is the same, but its tokens are not those that the model sampled: other tokens spell the same characters. From "
    "here on the prompt is computed again once."
)


def change(earlier: History, answer: str, now: History, text: str, place: int) -> Change:
    """Return why the prompt `text`, whose history is `now`, goes on otherwise than an earlier one at the character `place`.

    earlier, answer: of the earlier prompt and its answer, which is empty where it is not known. The texts are equal before
    `place`; they are equal beyond it, too, if the tokens alone differ.
    """
    before, trace = earlier.trace, now.trace
    same = earlier.num_common(now, text)
    here, there = _at(trace.pieces, place), _at(before.pieces, place)
    if same > place + CHUNK or same == earlier.length > place:
        return _told("retokenized", here, trace, text, place, RETOKENIZED)
    num_equal = num_common(before.messages, trace.messages)
    if before.tools != trace.tools and not _reaches(here, num_equal):
        advice = TOOLS_ORDER if sorted(before.tools) == sorted(trace.tools) else TOOLS_OTHER
        return _told("tools_changed", None, trace, text, place, advice)
    if num_equal == len(before.messages) and place >= max((piece.end for piece in before.pieces), default=0):
        return _of_answer(before, answer, trace, text, place)
    if num_equal < len(before.messages) and (_reaches(there, num_equal) or _reaches(here, num_equal)):
        return _of_message(before, trace, text, place, num_equal)
    return _rewritten(before, trace, text, place, here, there)


def _rewritten(before: Trace, trace: Trace, text: str, place: int, here: Piece | None, there: Piece | None) -> Change:
    """Return what the template did with messages that are the same. here, there: pieces at `place`, of now and before."""
    if before.settings != trace.settings:
        return _told("template_rewrote", here, trace, text, place, SETTINGS)
    lost = there if _covers(there, place) else _skipped(before, trace, place)
    found = here if lost is None and _covers(here, place) else lost
    return _told("template_rewrote", found, trace, text, place, _rewriting(found))


def _of_answer(before: Trace, answer: str, trace: Trace, text: str, place: int) -> Change:
    """Return the change behind the last message of the earlier prompt: where its answer began, or within that."""
    number = len(before.messages)
    if number >= len(trace.roles) or trace.roles[number] != "assistant":
        return _told("history_changed", None, trace, text, place, CHANGED, message=min(number, len(trace.roles) - 1))
    pieces = [piece for piece in trace.pieces if piece.message == number]
    by_field = {piece.field: piece for piece in reversed(pieces)}
    reasoning, content, call = (by_field.get(name) for name in ("reasoning_content", "content", "tool_calls"))
    shown = "" if content is None or content.start < 0 else text[content.start : content.end]
    if shown and answer and shown not in answer:
        return _told("history_changed", content, trace, text, place, CHANGED)
    if reasoning is None and _thought(answer, shown):
        lost = Piece(number, "reasoning_content", 0)
        return _told("history_changed", lost, trace, text, place, RETURN_REASONING)
    if reasoning is not None and reasoning.start < 0:
        return _told("template_rewrote", reasoning, trace, text, place, KEEP_REASONING)
    found, advice = _rewriting_of_answer(before, trace, place, content, call)
    return _told("template_rewrote", found, trace, text, place, advice, message=number)


def _rewriting_of_answer(
    before: Trace, trace: Trace, place: int, content: Piece | None, call: Piece | None
) -> tuple[Piece | None, str]:
    """Return which part of an answer that came back as it was the template shows otherwise, and the advice."""
    if before.settings != trace.settings:
        return None, SETTINGS
    if place < before.length:
        return None, GENERATION
    if call is not None and (content is None or place >= content.end):
        return call, ARGUMENTS
    return content, TRIMMED


def _of_message(before: Trace, trace: Trace, text: str, place: int, number: int) -> Change:
    """Return the change of a message that the client sent otherwise than before."""
    old = [piece for piece in before.pieces if piece.message == number]
    new = [piece for piece in trace.pieces if piece.message == number]
    is_without = {piece.field for piece in old} - {piece.field for piece in new}
    advice = RETURN_REASONING if is_without == {"reasoning_content"} else CHANGED
    digests = {(piece.field, piece.digest) for piece in old}
    found = next((piece for piece in new if (piece.field, piece.digest) not in digests), None)
    if found is None:
        found = next((piece for piece in old if piece.field in is_without), None)
        found = None if found is None else Piece(number, found.field, 0)
    return _told("history_changed", found, trace, text, place, advice, message=number)


def _rewriting(found: Piece | None) -> str:
    if found is None:
        return MOVED
    return {"reasoning_content": KEEP_REASONING, "tool_calls": ARGUMENTS}.get(found.field, TRIMMED)


def _told(
    cause: str, found: Piece | None, trace: Trace, text: str, place: int, advice: str, message: int | None = None
) -> Change:
    number = message if found is None else found.message
    inside = _covers(found, place)
    return Change(
        cause=cause,
        message=number,
        role=trace.roles[number] if number is not None and number < len(trace.roles) else None,
        field="template" if found is None else found.field,
        character=place - found.start if found is not None and inside else None,
        before=text[max(0, place - AROUND) : place],
        after=text[place : place + AROUND],
        advice=advice,
    )


def _at(pieces: list[Piece], place: int) -> Piece | None:
    """Return the last piece that begins at or before a character; None: there is none."""
    found: Piece | None = None
    for piece in pieces:
        if piece.start > place:
            break
        if piece.start >= 0:
            found = piece
    return found


def _covers(piece: Piece | None, place: int) -> bool:
    return piece is not None and piece.start <= place < piece.end


def _reaches(piece: Piece | None, number: int) -> bool:
    return piece is not None and piece.message >= number


def _skipped(before: Trace, trace: Trace, place: int) -> Piece | None:
    """Return the next piece behind a character that only one of the two texts shows."""
    for old, new in zip(before.pieces, trace.pieces, strict=False):
        if (old.message, old.field, old.digest) != (new.message, new.field, new.digest):
            return None
        if (old.start < 0) != (new.start < 0) and max(old.start, new.start) >= place:
            return new
        if old.start < 0 and new.start < 0 and new.field == "tool_calls":
            continue
        if old.start > place and new.start > place and old.start != new.start:
            return None
    return None


def _first(pieces: list[Piece], field: str) -> Piece | None:
    return next((piece for piece in pieces if piece.field == field), None)


def _thought(answer: str, content: str) -> str:
    """Return the reasoning of an answer, which stands before its content, without markers; empty if there is none."""
    end = _CLOSING.search(answer)
    stop = end.start() if end is not None else max(answer.find(content), 0) if content else 0
    return _MARKERS.sub("", answer[:stop]).strip()
