"""Keys that are pressed while an answer comes.

Owns: that they are not shown in the middle of it. Never does: take them away: the next prompt reads them.
Called by: the teller.
"""

from __future__ import annotations

import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager

LOCAL_FLAGS = 3
"""Where termios has them in its list."""


@contextmanager
def no_echo() -> Iterator[None]:
    """A terminal shows no keys for as long as the block; Ctrl-C still interrupts. Nothing happens where input is none."""
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
