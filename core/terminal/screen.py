"""What a person sees: answers as they come, in a terminal with colours, elsewhere the text alone.

Owns: colours, and what of a model's text a terminal gets. Never does: decide what is said. Called by: chat, complete.
"""

from __future__ import annotations

import io
import sys

from core.client.chunks import Piece

DIM, BOLD, RESET = "\033[2m", "\033[1m", "\033[0m"
CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
"""Control characters as visible text: a model's answer must not move the cursor, set titles or write to the clipboard."""


class Screen:
    """Standard output. colours: whether it is a terminal."""

    def __init__(self) -> None:
        self.colours = sys.stdout.isatty()
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # not every terminal has every character
        self._kind = "text"
        self._at_line_start = True

    def show(self, piece: Piece) -> None:
        """A part of an answer. Reasoning and calls are dim in a terminal, and left out elsewhere."""
        if piece.kind != "text" and not self.colours:
            return
        if piece.kind != self._kind:
            self._change(piece.kind)
        self._write(safe(piece.text) if self.colours else piece.text)

    def end(self) -> None:
        """The end of an answer, or of what there is of it."""
        self._change("text")
        self._fresh_line()
        sys.stdout.flush()

    def note(self, text: str) -> None:
        """A remark beside the conversation; in a terminal only."""
        if self.colours:
            print(f"{DIM}{safe(text)}{RESET}", flush=True)

    def prompt(self, text: str) -> str:
        """What stands before a line to be typed, in a terminal; marked so that readline counts no colours."""
        return f"\001{BOLD}\002{text}\001{RESET}\002" if self.colours else ""

    def _change(self, kind: str) -> None:
        """From text to reasoning or back, on a line of its own."""
        if kind == self._kind:
            return
        self._fresh_line()
        if self.colours:
            sys.stdout.write(RESET if kind == "text" else DIM)
        self._kind = kind

    def _fresh_line(self) -> None:
        if not self._at_line_start:
            self._write("\n")

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
        self._at_line_start = text.endswith("\n")


def safe(text: str) -> str:
    """Text without control characters, but line breaks and tabs."""
    return text.translate(CONTROLS)
