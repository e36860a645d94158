"""Texts continued in a terminal.

Owns: the turns. Never does: read arguments, choose a server. Called by: `core complete`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from core.api.errors import CoreError
from core.terminal.generation import Counts, generate
from core.terminal.screen import Screen
from core.terminal.target import Target
from core.terminal.typed import edit_lines, typed

PATH = "/v1/completions"
PROMPT = "> "


class Completion:
    """options: further fields of each request. stats: whether a line about speed follows each continuation."""

    def __init__(self, target: Target, options: Mapping[str, Any], *, stats: bool = False) -> None:
        self.screen = Screen()
        self._target = target
        self._options = options
        self._stats = stats

    def turn(self, text: str) -> None:
        """Show how the model continues `text`. Ctrl-C ends that. Raises CoreError."""
        counts = Counts()
        try:
            self._target.loop.run(self._continue(text, counts))
        except KeyboardInterrupt:
            self.screen.end()
            self.screen.note("stopped")
            return
        finally:
            self.screen.end()
        if self._stats and counts.total_s:
            self.screen.note(counts.line)

    def run(self) -> int:
        """Turns until the person leaves; returns the exit code."""
        edit_lines()
        self.screen.note(f"{self._target.model}, {self._target.place}. Each line is continued; Ctrl-D to leave.")
        while True:
            try:
                text = typed(self.screen.prompt(PROMPT))
            except EOFError:
                self.screen.note("")
                return 0
            except KeyboardInterrupt:
                self.screen.note("\nCtrl-D to leave.")
                continue
            if not text:
                continue
            try:
                self.turn(text)
            except CoreError as error:
                print(f"core complete: {error}", file=sys.stderr)

    async def _continue(self, text: str, counts: Counts) -> None:
        body = {"model": self._target.model, "prompt": text, **self._options}
        async for piece in generate(self._target.endpoint, PATH, body, counts):
            self.screen.show(piece)
