"""What a person types: lines, messages of several lines, or all of a pipe.

Owns: reading standard input. Never does: know commands. Called by: chat, complete.
"""

from __future__ import annotations

import sys
from contextlib import suppress

FENCE = '"""'
MOST_CHARACTERS = 16 * 1024 * 1024


def typed(prompt: str) -> str:
    """The next message. Raises EOFError at the end of input, KeyboardInterrupt."""
    text = input(prompt)
    if text.startswith(FENCE):
        return _until_fence(text.removeprefix(FENCE))
    while text.endswith("\\"):
        text = text[:-1] + "\n" + input("… ")
    return text


def piped() -> str:
    """All of standard input, as one message."""
    return sys.stdin.read(MOST_CHARACTERS).strip()


def edit_lines() -> None:
    """Arrow keys and earlier lines, where the system has readline."""
    with suppress(ImportError):
        import readline  # noqa: F401


def _until_fence(first: str) -> str:
    """The lines up to the one that ends with the fence."""
    lines = [first]
    while not lines[-1].endswith(FENCE):
        lines.append(input("… "))
    lines[-1] = lines[-1].removesuffix(FENCE)
    return "\n".join(lines).strip("\n")
