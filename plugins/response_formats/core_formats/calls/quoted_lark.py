r"""Translation of a Lark grammar for a text to one for that text within a JSON string.

Owns: `quoted`, and its supported syntax. Never does: validate a grammar, or parse a text with it.
Called by: `core_formats.calls.arguments_grammar`.

Models write the input of a custom tool as a JSON string, whose line feeds and quotes are escaped: `\n`, `\"`. Each
escape is a terminal of its own, because lexers do not go back: an expression that may go on with `\"` would not see
where `\n` ends it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import MappingProxyType

from core_formats.calls.quoted_expression import NotQuoted, quoted_expression

COMMON: Mapping[str, str] = MappingProxyType(
    {
        "LF": r"/\n/",
        "CR": r"/\r/",
        "NEWLINE": r"/(\r?\n)+/",
        "WS_INLINE": r"/[ \t]+/",
        "WS": r"/[ \t\f\r\n]+/",
        "DIGIT": "/[0-9]/",
        "INT": "/[0-9]+/",
        "LETTER": "/[A-Za-z]/",
        "WORD": "/[A-Za-z]+/",
        "CNAME": "/[A-Za-z_][A-Za-z0-9_]*/",
    }
)
"""Terminals that grammars import from Lark's common library."""
WORDS = re.compile(
    r"""(?P<space>\s+|//[^\n]*|\#[^\n]*)
      | (?P<alias>->\s*\w+)
      | (?P<text>"(?:\\.|[^"\\\n])*")(?!i)
      | (?P<expression>/(?:\\.|[^/\\\n])+/)(?![imslux])
      | %import\s+common\.(?P<imported>\w+)(?!\s*->)
      | (?P<name>[?!]?[A-Za-z_]\w*)(?![\[.])
      | (?P<sign>[:|()*+?])
      """,
    re.VERBOSE,
)
TERMINAL = re.compile(r"_*[A-Z]")


def quoted(grammar: str) -> str | None:
    """Return the grammar of the same texts between the quotes of a JSON string; None for unsupported syntax.

    Its terminals are rules, each with `t_` before its name.
    """
    try:
        return _Quoting().run(grammar)
    except NotQuoted:
        return None


class _Quoting:
    """A translation in progress. imported: names of Lark's own terminals that are defined so far."""

    def __init__(self) -> None:
        self.imported: dict[str, str] = {}

    def run(self, grammar: str) -> str:
        written: list[str] = []
        at = 0
        while at < len(grammar):
            found = WORDS.match(grammar, at)
            if found is None:
                raise NotQuoted
            at = found.end()
            written.append(self._word(str(found.lastgroup), found))
        return "".join([*written, *self.imported.values()])

    def _word(self, kind: str, found: re.Match[str]) -> str:
        word = found[kind]
        match kind:
            case "space":
                return "\n" if "\n" in word else " "
            case "alias":
                return " "
            case "text":
                return _text(word)
            case "expression":
                inner = word[1:-1].replace("\\/", "/")
                return quoted_expression(inner)
            case "imported":
                self._import(word)
                return "\n"
            case "name":
                return _name(word)
            case _:
                return word

    def _import(self, name: str) -> None:
        if name not in COMMON:
            raise NotQuoted
        rule = quoted_expression(COMMON[name][1:-1])
        self.imported[name] = f"\n{_name(name)}: {rule}\n"


def _name(word: str) -> str:
    """Return a rule's name, or that of the rule that replaces a terminal."""
    name = word.lstrip("?!")
    return f"t_{name.lower()}" if TERMINAL.match(name) else name


def _text(word: str) -> str:
    """Return a text in its JSON spelling."""
    try:
        text = json.loads(word)
    except ValueError:
        raise NotQuoted from None
    inside = json.dumps(text, ensure_ascii=False)[1:-1]
    return json.dumps(inside, ensure_ascii=False)
