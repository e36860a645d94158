"""What a person sees: answers as they come, in a terminal with colours, elsewhere the text alone.

Owns: colours, and what of a model's text a terminal gets. Never does: decide what is said. Called by: chat, complete.
"""

from __future__ import annotations

import io
import os
import sys

from core.commands.printable import safe
from core_commands.client.chunks import Piece

DIM, BOLD, RESET = "\033[2m", "\033[1m", "\033[0m"


class Screen:
    """Standard output. is_terminal: whether a person sees it. colours: whether it is a terminal that may have them."""

    def __init__(self) -> None:
        self.is_terminal = sys.stdout.isatty()
        wants_none = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
        self.colours = self.is_terminal and not wants_none
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # not every terminal has every character
        self._kind = "text"
        self._at_line_start = True

    def show(self, piece: Piece) -> None:
        """A part of an answer. Reasoning and calls are dim in a terminal, and left out elsewhere."""
        if piece.kind != "text" and not self.is_terminal:
            return
        if piece.kind != self._kind:
            self._change(piece.kind)
        self._write(safe(piece.text) if self.is_terminal else piece.text)

    def end(self) -> None:
        """The end of an answer, or of what there is of it."""
        self._change("text")
        self._fresh_line()
        sys.stdout.flush()

    def note(self, text: str) -> None:
        """A remark beside the conversation; in a terminal only."""
        if self.is_terminal:
            print(self._styled(safe(text), DIM), flush=True)

    def prompt(self, text: str) -> str:
        """What stands before a line to be typed, in a terminal; marked so that readline counts no colours."""
        if not self.colours:
            return text if self.is_terminal else ""
        return f"\001{BOLD}\002{text}\001{RESET}\002"

    def _change(self, kind: str) -> None:
        """From text to reasoning or back, on a line of its own."""
        if kind == self._kind:
            return
        self._fresh_line()
        if self.colours:
            sys.stdout.write(RESET if kind == "text" else DIM)
        elif kind != "text":
            sys.stdout.write(f"[{kind}] ")  # where nothing can be dim
        self._kind = kind

    def _styled(self, text: str, style: str) -> str:
        return f"{style}{text}{RESET}" if self.colours else text

    def _fresh_line(self) -> None:
        if not self._at_line_start:
            self._write("\n")

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
        self._at_line_start = text.endswith("\n")
