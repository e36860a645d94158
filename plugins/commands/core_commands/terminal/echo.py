"""Keys pressed during an answer.

Owns: the suppression of their echo. Never does: discard them; the next prompt reads them.
Called by: the teller.
"""

from __future__ import annotations

import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager

LOCAL_FLAGS = 3
"""Index of the local flags in termios' attribute list."""


@contextmanager
def no_echo() -> Iterator[None]:
    """Disable the terminal's echo inside the context; Ctrl-C still interrupts. No effect without a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    quiet = list(before)
    quiet[LOCAL_FLAGS] &= ~termios.ECHO
    termios.tcsetattr(terminal, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSANOW, before)
