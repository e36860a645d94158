"""One answer after the other on the screen, and the loop of a person who asks.

Owns: asking, what Ctrl-C and an error do to an answer, the end of the loop. Never does: keep a conversation, read arguments, or
choose a server. Called by: chat, complete.
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
class Told:
    """An answer that was shown.

    text: without reasoning and calls.
    is_whole: False when Ctrl-C ended it.
    """

    text: str
    is_whole: bool


class Teller:
    """Asks a model and shows its answers.

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

    def tell(self, fields: Mapping[str, Any]) -> Told:
        """Ask, and show the answer as it comes; Ctrl-C ends it. Raises CoreError when there is none.

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
            return Told("".join(parts), is_whole=False)
        finally:
            self.screen.end()
        if self._stats and counts.total_s:
            self.screen.note(counts.line)
        return Told("".join(parts), is_whole=True)

    def converse(self, command: str, hint: str, take: Callable[[str], bool], commands: Sequence[str] = ()) -> int:
        """Have `take` handle what a person types until it says False, or input ends; returns the exit code.

        command: whose errors are told.
        hint: what a person has to know at the beginning.
        commands: that the tab key completes.
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
