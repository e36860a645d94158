r"""Character classes rewritten to forms on which the dialects of regular expressions agree.

ECMA-262, Python and Rust differ about `\D`, `\W`, `\S` and their classes: other scripts have digits, letters and spaces
too. Here they are replaced by characters that every dialect accepts.

Owns: the substitutions. Never does: judge. Called by: `core_grammars.lowering`.
"""

from __future__ import annotations

OUTSIDE: dict[str, str] = {
    "D": r"\P{Nd}",
    "W": r"[^\p{L}\p{N}\p{M}_]",
    "S": "[^\\s\ufeff]",
}
IN_NEGATED_CLASS: dict[str, str] = {
    "d": r"\p{Nd}",
    "w": r"\p{L}\p{N}\p{M}_",
    "s": "\\s\ufeff",
}


def portable(expression: str) -> str:
    """Return `expression` with such classes spelled out; the result accepts nothing that any dialect would reject for
    them.
    """
    parts = []
    position = 0
    substitutes = OUTSIDE
    in_class = False
    while position < len(expression):
        letter = expression[position]
        length = 2 if letter == "\\" else 1
        part = expression[position : position + length]
        if letter == "\\":
            part = substitutes.get(part[1:], part)
        elif letter == "[" and not in_class:
            in_class = True
            negated = expression.startswith("^", position + 1)
            substitutes = IN_NEGATED_CLASS if negated else {}
        elif letter == "]" and in_class:
            in_class = False
            substitutes = OUTSIDE
        parts.append(part)
        position += length
    return "".join(parts)
