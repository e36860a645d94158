r"""The grammars that xgrammar writes for JSON, with one spelling for each string.

A key written as `\u0061` passes as an additional property beside the declared `a`, and reaches the reader as `a` all the same.
Strings with a length may have bare control characters, which JSON forbids. So escapes that no character needs are taken out,
and control characters too.

Owns: these two substitutions. Never does: import xgrammar. Called by: the backend, with the EBNF of a schema's grammar.
"""

from __future__ import annotations

ESCAPES = r'(([\"\\/bfnrt]) | ("u" [A-Fa-f0-9] [A-Fa-f0-9] [A-Fa-f0-9] [A-Fa-f0-9]))'
NEEDED_ESCAPES = r"(([\"\\bfnrt]))"
CHARACTERS = r"[^\"\\\r\n]"
NO_CONTROL_CHARACTERS = r"[^\0-\x1f\"\\\r\n]"


def one_spelling(ebnf: str) -> str:
    """The grammar with one spelling for each string. Raises ValueError when its rule for escapes is not the one known here."""
    if "basic_escape ::=" in ebnf and ESCAPES not in ebnf:
        raise ValueError("xgrammar writes its rule `basic_escape` in a new way, so keys would have second spellings.")
    return ebnf.replace(ESCAPES, NEEDED_ESCAPES).replace(CHARACTERS, NO_CONTROL_CHARACTERS)
