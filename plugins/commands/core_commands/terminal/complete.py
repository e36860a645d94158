"""Texts continued in a terminal.

Owns: the turns. Never does: ask or show (the teller does), read arguments. Called by: `core complete`.
"""

from __future__ import annotations

from core_commands.terminal.teller import Teller

PATH = "/v1/completions"


class Completion:
    """One text after the other; none knows of those before."""

    def __init__(self, teller: Teller) -> None:
        self._teller = teller

    def run(self) -> int:
        """Turns until the person leaves; returns the exit code."""
        return self._teller.converse("complete", "Each line is continued; Ctrl-D to leave.", self._handle)

    def turn(self, text: str) -> bool:
        """Show how the model continues `text`; whether that is whole, since Ctrl-C ends it. Raises CoreError."""
        return self._teller.tell({"prompt": text}).is_whole

    def _handle(self, text: str) -> bool:
        self.turn(text)
        return True
