r"""xgrammar's JSON grammars, restricted to a single spelling of each string.

A key written as `\u0061` would pass as an additional property next to the declared `a`, yet the reader would see `a`.
Strings with a length may contain raw control characters, which JSON forbids. Therefore escapes that no character needs
are removed, and control characters too.

Owns: the two substitutions. Never does: import xgrammar. Called by: the backend, with the EBNF of a schema's grammar.
"""

from __future__ import annotations

ESCAPES = r'(([\"\\/bfnrt]) | ("u" [A-Fa-f0-9] [A-Fa-f0-9] [A-Fa-f0-9] [A-Fa-f0-9]))'
NEEDED_ESCAPES = r"(([\"\\bfnrt]))"
CHARACTERS = r"[^\"\\\r\n]"
NO_CONTROL_CHARACTERS = r"[^\0-\x1f\"\\\r\n]"


def one_spelling(ebnf: str) -> str:
    """Return the grammar with a single spelling of each string. Raises ValueError when its rule for escapes is not the
    expected one.
    """
    if "basic_escape ::=" in ebnf and ESCAPES not in ebnf:
        raise ValueError("xgrammar writes its rule `basic_escape` in a new way, so keys would have second spellings.")
    return ebnf.replace(ESCAPES, NEEDED_ESCAPES).replace(CHARACTERS, NO_CONTROL_CHARACTERS)
