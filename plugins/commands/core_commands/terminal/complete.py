"""Text completion in a terminal.

Owns: the turns. Never does: send or display (the teller does), parse arguments. Called by: `core complete`.
"""

from __future__ import annotations

from core_commands.terminal.answers import Teller

PATH = "/v1/completions"


class Completion:
    """A series of independent completions."""

    def __init__(self, teller: Teller) -> None:
        self._teller = teller

    def run(self) -> int:
        """Run turns until the user leaves; returns the exit code."""
        return self._teller.converse("complete", "Each line is continued; Ctrl-D to leave.", self._handle)

    def turn(self, text: str) -> bool:
        """Show the continuation of `text`; returns whether it is complete, since Ctrl-C ends it. Raises CoreError."""
        return self._teller.tell({"prompt": text}).is_whole

    def _handle(self, text: str) -> bool:
        self.turn(text)
        return True
