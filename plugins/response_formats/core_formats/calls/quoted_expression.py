r"""Translation of a regular expression for a text to rules for that text within a JSON string.

Owns: reading an expression, and its letters and classes as JSON spells them. Never does: know grammars around it.
Called by: `core_formats.calls.quoted_lark`.

It supports letters, classes, groups, alternatives and counts; anything else, such as anchors, flags and lazy counts,
raises `NotQuoted`.
"""

from __future__ import annotations

import re

ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
"""Characters with a short escape in JSON."""
PLAIN = r'[^"\\\x00-\x1f]'
SAMPLES = "".join(map(chr, range(0x20, 0x7F))) + "äЖ中🙂\x7f"
ONE = re.compile(r"\[\^?\]?(?:\\.|[^\]\\\[])*\]|\\[nrtfdDwWsS]|\\[^A-Za-z0-9]|[^\\\[\]()|*+?{}^$]")
COUNT = re.compile(r"[*+?]|\{\d{1,3}(?:,\d{0,3})?\}")
MAX_DEPTH = 20


class NotQuoted(ValueError):
    """Raised for a part of a grammar that is not supported here."""


def quoted_expression(expression: str) -> str:
    """Return Lark rules, in brackets, for the JSON spelling of the texts that an expression matches. Raises NotQuoted."""
    run = re.fullmatch(rf"\(?({ONE.pattern})([*+])\)?", expression)
    if run is not None and expression.startswith("(") == expression.endswith(")"):
        # One expression for the whole: letter by letter, computing a mask takes longer.
        return f"({_one(run[1], run=True)}){run[2]}"
    reading = _Reading(expression)
    rules = reading.alternatives(0)
    if reading.at < len(expression):
        raise NotQuoted
    return f"({rules})"


class _Reading:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def alternatives(self, depth: int) -> str:
        if depth > MAX_DEPTH:
            raise NotQuoted
        ways = [self._series(depth)]
        while self._takes("|"):
            ways.append(self._series(depth))
        return " | ".join(ways)

    def _series(self, depth: int) -> str:
        parts: list[str] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            part = self._part(depth)
            count = COUNT.match(self.text, self.at)
            if count is not None:
                self.at = count.end()
                part += count[0]
            parts.append(part)
        return " ".join(parts) or '""'

    def _part(self, depth: int) -> str:
        if self._takes("(?:") or self._takes("("):
            inner = self.alternatives(depth + 1)
            if not self._takes(")"):
                raise NotQuoted
            return f"({inner})"
        found = ONE.match(self.text, self.at)
        if found is None:
            raise NotQuoted
        self.at = found.end()
        return f"({_one(found[0])})"

    def _takes(self, text: str) -> bool:
        if not self.text.startswith(text, self.at):
            return False
        self.at += len(text)
        return True


def _one(letter: str, *, run: bool = False) -> str:
    """Return the rules for one character of a class. run: unescaped characters may repeat."""
    try:
        one = re.compile(letter)
    except re.error:
        raise NotQuoted from None
    ways: list[str] = []
    if any(map(one.fullmatch, SAMPLES)):
        times = "+" if run else ""
        inside = _inside(letter)
        ways.append(f"/[{inside}&&{PLAIN}]{times}/")
    for character, spelled in ESCAPES.items():
        if one.fullmatch(character):
            doubled = spelled.replace("\\", "\\\\").replace('"', '\\"')
            ways.append(f'"{doubled}"')
    if not ways:
        raise NotQuoted
    return " | ".join(ways)


def _inside(letter: str) -> str:
    """Return a class within a class."""
    if letter == ".":
        return r"[^\n]"
    if letter.startswith("["):
        return letter.replace("/", "\\/")
    return "[\\/]" if letter == "/" else f"[{letter}]"
