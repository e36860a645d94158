"""Incremental reading of text, written as if the whole text were available.

Owns: `Reader` and `Literals`. Never does: know formats. Called by: the parser and the readers of bodies.

Readers are generators: they `yield` where they need more text and continue when it has arrived. Only positions relative
to `Reader.at` stay valid across a `yield`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Generator, Iterable
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
Reading = Generator[None, None, T]
Sink = Callable[[str], None]

SPACE = " \t\r\n"

# Delimiters around a special token; no decoded text contains them.
TOKEN_OPEN = "\ud800"
TOKEN_SHUT = "\ud801"
_TOKEN = re.compile(f"{TOKEN_OPEN}[^{TOKEN_SHUT}]*{TOKEN_SHUT}")
_BRACKETS = re.compile(f"[{TOKEN_OPEN}{TOKEN_SHUT}]")


def without_tokens(text: str) -> str:
    """Return the text without its special tokens."""
    return _TOKEN.sub("", text) if TOKEN_OPEN in text else text


def with_token_texts(text: str) -> str:
    """Return the text with its special tokens spelled out."""
    return _BRACKETS.sub("", text) if TOKEN_OPEN in text else text


class Literals:
    """A set of texts to search for at once. Of two that begin alike, the longer match wins."""

    __slots__ = ("any", "beginnings", "longest", "texts")

    def __init__(self, texts: Iterable[str]) -> None:
        ordered = sorted({text for text in texts if text}, key=len, reverse=True)
        self.texts = tuple(ordered)
        self.any = re.compile("|".join(map(re.escape, ordered))) if ordered else None
        self.beginnings = frozenset(text[:end] for text in ordered for end in range(1, len(text)))
        self.longest = len(ordered[0]) if ordered else 0


@lru_cache(maxsize=1024)
def literals(*texts: str) -> Literals:
    """Return the set for these texts; equal texts give the same object."""
    return Literals(texts)


class Reader:
    """The received text and the reading position.

    text: received and not yet released.
    at: reading position.
    mark: text after it is kept, because it may be read again as something else.
    ended: no more text will arrive.
    """

    __slots__ = ("at", "ended", "mark", "text")

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.mark: int | None = None
        self.ended = False

    def give(self, text: str) -> None:
        """Append text, and release the text already read."""
        start = self.at if self.mark is None else self.mark
        self.text = self.text[start:] + text
        self.at -= start
        if self.mark is not None:
            self.mark = 0

    def more(self) -> Reading[bool]:
        """Wait for more text. False: there is none."""
        if self.ended:
            return False
        yield
        return True

    def peek(self) -> Reading[str]:
        """Return the next character, empty at the end."""
        while self.at >= len(self.text):
            if not (yield from self.more()):
                return ""
        return self.text[self.at]

    def skip(self, characters: str = SPACE) -> Reading[str]:
        """Skip these characters; returns the next other character, empty at the end."""
        while True:
            following = yield from self.peek()
            if not following or following not in characters:
                return following
            self.at += 1

    def take(self, wanted: Literals) -> Reading[str]:
        """Consume one of the texts if one begins here; returns it, or an empty text."""
        if wanted.any is None:
            return ""
        while True:
            here = self.text[self.at : self.at + wanted.longest]
            if here not in wanted.beginnings and here:
                break
            if not (yield from self.more()):
                break
        found = wanted.any.match(self.text, self.at)
        if found is None:
            return ""
        self.at = found.end()
        return found.group()

    def until(self, wanted: Literals, sink: Sink, limit: int = sys.maxsize) -> Reading[str]:
        """Emit to `sink` the text before the first match, consume the match and return it.

        Holds back only what may be the beginning of a match. Returns an empty text when the text ends without a match,
        or when none begins within `limit` characters, which are then consumed.
        """
        while True:
            found = None if wanted.any is None else wanted.any.search(self.text, self.at)
            held = self._held(wanted, len(self.text) if found is None else found.end())
            certain = False
            if found is not None and found.start() <= held:
                held = found.start()
                certain = self.ended or self.text[held:] not in wanted.beginnings
            if held - self.at > limit:
                self._pass(self.at + limit, sink)
                return ""
            limit -= held - self.at
            self._pass(held, sink)
            if found is not None and certain:
                self.at = found.end()
                return found.group()
            if not (yield from self.more()):
                return ""

    def _held(self, wanted: Literals, limit: int) -> int:
        """Return the earliest position at which an incomplete match may begin; the end of the text if there is none."""
        if self.ended:
            return len(self.text)
        first = max(self.at, len(self.text) - wanted.longest + 1)
        for start in range(first, limit):
            if self.text[start:] in wanted.beginnings:
                return start
        return len(self.text)

    def _pass(self, end: int, sink: Sink) -> None:
        if end > self.at:
            sink(self.text[self.at : end])
            self.at = end
