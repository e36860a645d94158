"""Text that tracks which of its characters a chat template itself wrote.

Owns: `WrittenText`, its operations, and joining. Never does: know templates (`core_tokens.chat.written_code` does) or
tokens.
Called by: `core_tokens.chat.written_code`, `core_tokens.chat.chat_template`, `core_tokens.content_encoding`.

Everything else is content: a plain `str`, and the result of any operation that is not defined here. An operation that
loses track therefore turns a template's words into content, never content into a template's words.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any, SupportsIndex

from markupsafe import Markup

Spans = tuple[tuple[int, int], ...]
"""Start and end of each run of characters that the template wrote, in order, with content between them."""


class WrittenText(str):
    """A text in which some characters are the template's own.

    Without spans it is content. Methods return plain texts where no character of the result is the template's.
    """

    __slots__ = ("_own",)
    _own: Spans

    def __new__(cls, text: str = "", own: Spans = ()) -> WrittenText:
        """Create a text with these spans."""
        made = str.__new__(cls, text)
        made._own = own
        return made

    def __str__(self) -> WrittenText:
        # compiled templates call `str` on everything they write
        return self

    def __add__(self, other: str) -> str:
        return joined((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> str:
        return joined((other, self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, times: SupportsIndex) -> str:
        text = str.__mul__(self, times)
        if self._own == ((0, len(self)),):
            return written(text)
        return joined((self,) * (len(text) // len(self))) if text else text

    __rmul__ = __mul__

    def __getitem__(self, key: SupportsIndex | slice[Any, Any, Any]) -> str:
        if not isinstance(key, slice):
            index = key.__index__()
            start = index + len(self) if index < 0 else index
            return self._part(start, start + 1) if 0 <= start < len(self) else str.__getitem__(self, key)
        start, stop, step = key.indices(len(self))
        return self._part(start, stop) if step == 1 else str.__getitem__(self, key)

    def strip(self, chars: str | None = None, /) -> str:
        """Strip as `str` does, keeping the spans."""
        start = len(self) - len(str.lstrip(self, chars))
        return self._part(start, max(start, len(str.rstrip(self, chars))))

    def lstrip(self, chars: str | None = None, /) -> str:
        """Strip on the left, keeping the spans."""
        return self._part(len(self) - len(str.lstrip(self, chars)), len(self))

    def rstrip(self, chars: str | None = None, /) -> str:
        """Strip on the right, keeping the spans."""
        return self._part(0, len(str.rstrip(self, chars)))

    def removeprefix(self, prefix: str, /) -> str:
        """Remove a prefix, keeping the spans."""
        return self._part(len(self) - len(str.removeprefix(self, prefix)), len(self))

    def removesuffix(self, suffix: str, /) -> str:
        """Remove a suffix, keeping the spans."""
        return self._part(0, len(str.removesuffix(self, suffix)))

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        """Split as `str` does, keeping the spans."""
        return self._parts(str.split(self, sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        """Split from the right, keeping the spans."""
        return self._parts(str.rsplit(self, sep, maxsplit), sep)

    def splitlines(self, keepends: bool = False) -> list[str]:
        """Split into lines, keeping the spans."""
        found: list[str] = []
        start = 0
        for line, whole in zip(str.splitlines(self, keepends), str.splitlines(self, True), strict=True):
            found.append(self._part(start, start + len(line)))
            start += len(whole)
        return found

    def partition(self, sep: str, /) -> tuple[str, str, str]:
        """Partition as `str` does, keeping the spans."""
        return self._three(str.partition(self, sep))

    def rpartition(self, sep: str, /) -> tuple[str, str, str]:
        """Partition from the right, keeping the spans."""
        return self._three(str.rpartition(self, sep))

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> str:
        """Replace as `str` does, keeping the spans."""
        if not old:
            return str.replace(self, old, new, count)
        return joined(_between(self.split(old, count), new))

    def join(self, items: Iterable[str], /) -> str:
        """Join as `str` does, keeping the spans."""
        return joined(_between(list(items), self))

    def upper(self) -> str:
        """Return the text in upper case, with its spans."""
        return self._mapped(str.upper)

    def lower(self) -> str:
        """Return the text in lower case, with its spans."""
        return self._mapped(str.lower)

    def capitalize(self) -> str:
        """Capitalize the text, with its spans."""
        return self._mapped(str.capitalize)

    def title(self) -> str:
        """Return the text in title case, with its spans."""
        return self._mapped(str.title)

    def _mapped(self, change: Callable[[str], str]) -> str:
        """Change the text letter by letter; the spans are kept only for ASCII, where lengths cannot change."""
        text = change(self)
        return WrittenText(text, self._own) if self.isascii() else text

    def _part(self, start: int, stop: int) -> str:
        text = str.__getitem__(self, slice(start, stop))
        own: list[tuple[int, int]] = []
        # A text of many messages has thousands of spans, and may be split into as many parts.
        for index in range(bisect_right(self._own, start, key=_end), len(self._own)):
            first, last = self._own[index]
            if first >= stop:
                break
            own.append((max(first, start) - start, min(last, stop) - start))
        return WrittenText(text, tuple(own)) if own else text

    def _parts(self, texts: Sequence[str], sep: str | None) -> list[str]:
        """Return the parts with these texts, which follow one another separated by `sep` or white space."""
        found: list[str] = []
        start = 0
        for text in texts:
            start = str.find(self, text, start) if sep is None else start
            found.append(self._part(start, start + len(text)))
            start += len(text) + len(sep or "")
        return found

    def _three(self, texts: tuple[str, str, str]) -> tuple[str, str, str]:
        head, middle, tail = self._parts(texts, "")
        return head, middle, tail


class WrittenMarkup(Markup):
    """The result of the filter `safe` on a `WrittenText`; converting it to text restores one."""

    __slots__ = ("_own",)
    _own: Spans

    @classmethod
    def of(cls, text: WrittenText) -> WrittenMarkup:
        """Return the markup of a text."""
        made = cls(str.__str__(text))
        made._own = text._own
        return made

    def __str__(self) -> str:
        # base-class methods create objects of this class without spans
        return WrittenText(str.__str__(self), getattr(self, "_own", ()))


def _end(span: tuple[int, int]) -> int:
    return span[1]


def written(text: str) -> WrittenText:
    """Return a text that the template wrote entirely."""
    return WrittenText(text, ((0, len(text)),) if text else ())


def spans_of(text: str) -> Spans:
    """Return the spans that a template wrote; none for a plain text."""
    return text._own if isinstance(text, WrittenText) else ()


def plain(text: str) -> str:
    """Return the text as a plain `str`, for messages and libraries that accept no subclass."""
    return text if type(text) is str else str.__str__(text)


def own_tail(text: str) -> str:
    """Return the end of a text that its template wrote, after the last content. Empty where the text ends with content."""
    spans = spans_of(text)
    return plain(text)[spans[-1][0] :] if spans and spans[-1][1] == len(text) else ""


def joined(parts: Sequence[str]) -> str:
    """Return `"".join(parts)`, keeping the spans."""
    own: list[tuple[int, int]] = []
    start = 0
    end = -1
    for part in parts:
        if type(part) is WrittenText and part._own:
            if not start:  # a text that grows message by message, and its spans with it
                own = list(part._own)
            else:
                begin, last = part._own[0]
                if begin + start == end:
                    begin = own.pop()[0] - start
                own.append((begin + start, last + start))
                own += [(first + start, last + start) for first, last in part._own[1:]]
            end = own[-1][1]
        start += len(part)
    text = "".join(parts)
    return WrittenText(text, tuple(own)) if own else text


def _between(items: Sequence[str], separator: str) -> list[str]:
    """Return the items with a separator between them."""
    if not separator:
        return list(items)
    parts = [separator] * max(0, 2 * len(items) - 1)
    parts[::2] = items
    return parts


def joined_by(separator: str, items: Sequence[str]) -> str:
    """Return `separator.join(items)`, keeping all spans."""
    return joined(_between(items, separator))
