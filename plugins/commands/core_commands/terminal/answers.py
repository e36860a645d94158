"""Display of one answer after another, and the user's input loop.

Owns: sending requests, the handling of Ctrl-C and errors in an answer, the end of the loop. Never does: keep a
conversation, parse arguments, or choose a server. Called by: chat, complete.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from core.api.errors import CoreError
from core.commands.printable import safe
from core_commands.terminal.echo import no_echo
from core_commands.terminal.generation import Counts, generate
from core_commands.terminal.screen import Screen
from core_commands.terminal.target import Target
from core_commands.terminal.typed import edit_lines, typed

PROMPT = "> "


@dataclass(frozen=True, slots=True)
class ShownAnswer:
    """A displayed answer.

    text: without reasoning and calls.
    is_whole: False when Ctrl-C ended it.
    """

    text: str
    is_whole: bool


class Teller:
    """Sends requests to a model and displays its answers.

    path: of requests.
    options: further fields of each request.
    stats: whether a line about speed follows each answer.
    """

    def __init__(self, target: Target, path: str, options: Mapping[str, Any], *, stats: bool = False) -> None:
        self.screen = Screen()
        self._target = target
        self._path = path
        self._options = options
        self._stats = stats

    def tell(self, fields: Mapping[str, Any]) -> ShownAnswer:
        """Send a request, and show the streamed answer; Ctrl-C ends it. Raises CoreError when there is none.

        fields: the prompt, or the messages.
        """
        parts: list[str] = []
        counts = Counts()
        try:
            with no_echo():
                self._target.loop.run(self._show(fields, parts, counts))
        except KeyboardInterrupt:
            self.screen.end()
            self.screen.note("stopped")
            return ShownAnswer("".join(parts), is_whole=False)
        finally:
            self.screen.end()
        if self._stats and counts.total_s:
            self.screen.note(counts.line)
        return ShownAnswer("".join(parts), is_whole=True)

    def converse(self, command: str, hint: str, take: Callable[[str], bool], commands: Sequence[str] = ()) -> int:
        """Call `take` with each input until it returns False or input ends; returns the exit code.

        command: name in error messages.
        hint: shown at the beginning.
        commands: completed by the tab key.
        """
        edit_lines(commands)
        self.screen.note(f"{self._target.model}, {self._target.place}.\n{hint}")
        while True:
            try:
                text = typed(self.screen.prompt(PROMPT))
                goes_on = not text.strip() or take(text)
            except EOFError:
                self.screen.note("")
                return 0
            except KeyboardInterrupt:
                self.screen.note("\nCtrl-D to leave.")
                continue
            except CoreError as error:
                print(f"core {command}: {safe(str(error))}", file=sys.stderr)
                continue
            if not goes_on:
                return 0

    async def _show(self, fields: Mapping[str, Any], parts: list[str], counts: Counts) -> None:
        body = {"model": self._target.model, **fields, **self._options}
        async for piece in generate(self._target.endpoint, self._path, body, counts):
            if piece.kind == "text":
                parts.append(piece.text)
            self.screen.show(piece)
