"""The trace of a rendered conversation: digests of its messages, tools and text, and where contents lie in the text.

Owns: `Trace`, and `History`, its form in memory. Never does: keep texts, or compare (`core_apis.histories.compare` does).
Called by: the preparation, `core kv audit`.

Contents are searched for outside the characters that the template wrote. Digests are XXH3: they never leave the server,
and are compared within one tenant alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import xxhash

from core_tokens.chat.message_forms import REASONING_NAMES
from core_tokens.chat.written_text import Spans, plain, spans_of

CHUNK = 64
"""Number of characters between two digests of a text's beginning."""
DIGEST_BYTES = 8
UNWRITABLE = (msgspec.MsgspecError, ValueError, OverflowError, TypeError, RecursionError)
"""Errors of writing JSON: lone surrogates, numbers beyond 64 bits, values that are nested too deeply."""
SEARCH = 16
"""Limit on the characters that are searched for contents, as a multiple of the text's length."""


class Piece(msgspec.Struct, array_like=True, gc=False):
    """A part of a message.

    message: index of the message. field: `content`, `reasoning_content` or `tool_calls`. digest: of its text.
    start, end: its place in the rendered text; -1 where the template does not show it unchanged.
    """

    message: int
    field: str
    digest: int
    start: int = -1
    end: int = -1


class Trace(msgspec.Struct, array_like=True):
    """What one prompt was made of.

    roles:    of the messages.
    messages: a digest of each message.
    pieces:   of the messages, in their order.
    tools:    a digest of each tool.
    settings: digest of everything else that the template was given.
    length:   characters of the rendered text.
    """

    roles: list[str]
    messages: list[int]
    pieces: list[Piece]
    tools: list[int]
    settings: int
    length: int


class History(msgspec.Struct, array_like=True):
    """The trace of a prompt in the form that is kept and sent between processes.

    packed:  the `Trace`, as msgpack.
    digests: of the text's beginnings, a chunk apart, each of 8 bytes; last the digest of all of it.
    length:  characters of the text.
    """

    packed: bytes
    digests: bytes
    length: int

    @property
    def trace(self) -> Trace:
        """Return the trace."""
        return msgspec.msgpack.decode(self.packed, type=Trace)

    @property
    def num_bytes(self) -> int:
        """Return the size of what is kept."""
        return len(self.packed) + len(self.digests)

    def going_on(self, text: str, answer: str) -> History:
        """Return the history of the prompt `text` and its answer."""
        whole = text + answer
        return History(self.packed, text_digests(whole, len(text) // CHUNK * CHUNK, self.digests), len(whole))

    def num_common(self, other: History, text: str) -> int:
        """Return how many characters are known to be equal at the start of this text and of `text`, which is the other's.

        Exact to a chunk, but for the whole of this text.
        """
        most = min(self.length, other.length) // CHUNK
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            at = slice((middle - 1) * DIGEST_BYTES, middle * DIGEST_BYTES)
            if self.digests[at] == other.digests[at]:
                low = middle
            else:
                high = middle - 1
        if low == most and self.length <= other.length:
            whole = xxhash.xxh3_64_digest(_bytes(text[: self.length]))
            if whole == self.digests[-DIGEST_BYTES:]:
                return self.length
        return low * CHUNK


class Field(NamedTuple):
    """A field of a message with its text."""

    name: str
    text: str


def history_of(
    text: str, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] = (), settings: Any = None
) -> History:
    """Return the history of `text`, which a template rendered from these messages and tools."""
    fields = [list(_fields(message)) for message in messages]
    pieces = [
        Piece(number, field.name, digest_of(field.text)) for number, parts in enumerate(fields) for field in parts
    ]
    _place(pieces, [field.text for parts in fields for field in parts], plain(text), spans_of(text))
    trace = Trace(
        roles=[str(message.get("role")) for message in messages],
        messages=[_message_digest(message, parts) for message, parts in zip(messages, fields, strict=True)],
        pieces=pieces,
        tools=[digest_of(tool) for tool in tools],
        settings=digest_of(settings),
        length=len(text),
    )
    return History(msgspec.msgpack.encode(trace), text_digests(plain(text)), len(text))


def digest_of(value: Any) -> int:
    """Return the digest of a text, or of a value of JSON."""
    if isinstance(value, str):
        return xxhash.xxh3_64_intdigest(_bytes(value))
    try:
        return xxhash.xxh3_64_intdigest(msgspec.json.encode(value, order="deterministic"))
    except UNWRITABLE:
        return 0


def num_common(one: Any, other: Any) -> int:
    """Return how many items at the start of two sequences of one type are equal."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def text_digests(text: str, start: int = 0, before: bytes = b"") -> bytes:
    """Return the digests of a text's beginnings, one for each whole chunk, and one of all of it.

    start, before: a multiple of the chunk, and the digests up to there, if they are known.
    """
    state = xxhash.xxh3_64(_bytes(text[:start]))
    found = [before[: start // CHUNK * DIGEST_BYTES]]
    for place in range(start, len(text) - CHUNK + 1, CHUNK):
        state.update(_bytes(text[place : place + CHUNK]))
        found.append(state.digest())
    state.update(_bytes(text[len(text) // CHUNK * CHUNK :]))
    found.append(state.digest())
    return b"".join(found)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _fields(message: Mapping[str, Any]) -> Iterator[Field]:
    """Yield the fields of a message in the order in which templates write them, without empty ones."""
    reasoning = next((message[name] for name in REASONING_NAMES if message.get(name)), None)
    if isinstance(reasoning, str):
        yield Field("reasoning_content", reasoning)
    yield from (Field("content", text) for text in _contents(message.get("content")))
    yield from (Field("tool_calls", text) for text in _arguments(message.get("tool_calls") or ()))


def _contents(content: Any) -> Iterator[str]:
    """Yield the texts of a content, which is a text or a list of parts."""
    parts = [{"text": content}] if isinstance(content, str) else content if isinstance(content, list) else []
    texts = (part.get("text") for part in parts if isinstance(part, Mapping))
    yield from (text for text in texts if isinstance(text, str) and text)


def _arguments(calls: Iterable[Any]) -> Iterator[str]:
    """Yield the arguments of calls as text."""
    functions = (call.get("function") for call in calls if isinstance(call, Mapping))
    for called in functions:
        written = called.get("arguments") if isinstance(called, Mapping) else None
        if written:
            yield written if isinstance(written, str) else _json(written)


def _json(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except UNWRITABLE:
        return ""


def _message_digest(message: Mapping[str, Any], fields: Sequence[Field]) -> int:
    """Return the digest of what a message says, whichever names its client gives to reasoning."""
    calls = [call.get("function") for call in message.get("tool_calls") or () if isinstance(call, Mapping)]
    names = [called.get("name") for called in calls if isinstance(called, Mapping)]
    return digest_of([str(message.get("role")), names, message.get("name"), *(list(field) for field in fields)])


def _place(pieces: Sequence[Piece], texts: Sequence[str], text: str, own: Spans) -> None:
    """Set the places of the pieces whose texts stand in `text`, each after the one before it."""
    starts = [span[0] for span in own]
    cursor = 0
    room = SEARCH * len(text)
    for piece, wanted in zip(pieces, texts, strict=True):
        shown = wanted.strip()
        at = cursor
        while shown and room > 0:
            found = text.find(shown, at)
            room -= (len(text) if found < 0 else found) - at
            if found < 0:
                break
            span = bisect_right(starts, found) - 1
            if span < 0 or own[span][1] <= found:
                piece.start, piece.end = found, found + len(shown)
                cursor = piece.end
                break
            at = own[span][1]  # the template's own word, such as the name of a role
