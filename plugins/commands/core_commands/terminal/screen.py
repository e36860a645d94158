"""Display of streamed answers: with colours in a terminal, plain text elsewhere.

Owns: colours, and the filtering of a model's text for a terminal. Never does: choose the text. Called by: chat,
complete.
"""

from __future__ import annotations

import io
import os
import sys

from core.commands.printable import safe
from core_commands.client.chunks import Piece

DIM, BOLD, RESET = "\033[2m", "\033[1m", "\033[0m"


class Screen:
    """Standard output. is_terminal: whether it is a terminal. colours: whether it is a terminal that may use them."""

    def __init__(self) -> None:
        self.is_terminal = sys.stdout.isatty()
        wants_none = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
        self.colours = self.is_terminal and not wants_none
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # not every terminal supports every character
        self._kind = "text"
        self._at_line_start = True

    def show(self, piece: Piece) -> None:
        """Show a part of an answer. Reasoning and calls are dim in a terminal, and omitted elsewhere."""
        if piece.kind != "text" and not self.is_terminal:
            return
        if piece.kind != self._kind:
            self._change(piece.kind)
        self._write(safe(piece.text) if self.is_terminal else piece.text)

    def end(self) -> None:
        """Finish an answer, complete or not."""
        self._change("text")
        self._fresh_line()
        sys.stdout.flush()

    def note(self, text: str) -> None:
        """Print a remark outside the conversation; in a terminal only."""
        if self.is_terminal:
            print(self._styled(safe(text), DIM), flush=True)

    def prompt(self, text: str) -> str:
        """Return the prompt for a line, in a terminal; marked so that readline does not count colour codes."""
        if not self.colours:
            return text if self.is_terminal else ""
        return f"\001{BOLD}\002{text}\001{RESET}\002"

    def _change(self, kind: str) -> None:
        """Switch between text and reasoning, on a new line."""
        if kind == self._kind:
            return
        self._fresh_line()
        if self.colours:
            sys.stdout.write(RESET if kind == "text" else DIM)
        elif kind != "text":
            sys.stdout.write(f"[{kind}] ")  # where dim text is not available
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
