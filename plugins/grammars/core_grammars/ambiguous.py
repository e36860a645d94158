"""Detection of grammar rules with infinitely many derivations: `s ::= s s`, `s ::= s`.

Owns: their detection in the text of an EBNF or Lark grammar, in linear time. Never does: detect every ambiguity (which
is undecidable), or know a backend. Called by: `core_grammars.keywords`.

A text of n parts has about 4 ** n derivations by such a rule, and a parser that keeps all of them slows down with each
token.
"""

from __future__ import annotations

import re

WORD = re.compile(
    r"""
      (?P<text>"(?:[^"\\\n]|\\.){0,1000}"i?|'(?:[^'\\\n]|\\.){0,1000}'|\[(?:[^\]\\\n]|\\.){0,1000}\]|/(?:[^/\\\n]|\\.){1,1000}/[imslux]*)
    | (?P<note>\#[^\n]*|//[^\n]*)
    | (?P<begin>::=|:)
    | (?P<name>[A-Za-z_][\w.-]*)
    | (?P<line>\n)
    | (?P<sign>[^\s])
    """,
    re.VERBOSE,
)
"""Literals are scanned to a limited length, so that many unterminated ones do not take quadratic time."""


def ambiguous_rule(text: str) -> str:
    """Return the first alternative that consists only of its own rule, such as `s ::= s s`; empty when there is none."""
    rule = ""
    pending = ""
    parts: list[str] = []
    depth = 0
    is_plain = True
    for found in WORD.finditer(text + "\n|"):
        kind, word = found.lastgroup, found.group()
        if kind in ("line", "note"):
            continue
        ends = kind == "begin" or (word == "|" and not depth)
        if kind == "begin" and parts:
            pending = parts.pop()  # the name of the next rule
        if ends:
            if rule and is_plain and parts and set(parts) == {rule}:
                return f"{rule} ::= {' '.join(parts)}"
            parts, is_plain, depth = [], True, 0
            rule = pending if kind == "begin" else rule
        elif kind == "name":
            parts.append(word)
        else:
            depth += (word in ("(", "{")) - (word in (")", "}"))
            # A group or a repetition of the rule alone changes nothing: `(s s)`, which was not recognised here, took all of the
            # 10 s that a compilation may take.
            is_plain = is_plain and word in "()?*+"
    return ""
