"""A chat in a terminal: a question, its answer as it comes, the next question.

Owns: the turns, and what an error or Ctrl-C does to one. Never does: read arguments, choose a server. Called by: `core chat`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from core.api.errors import CoreError
from core.terminal.conversation import Conversation
from core.terminal.generation import Counts, generate
from core.terminal.screen import Screen
from core.terminal.slash import Leave, run_slash
from core.terminal.target import Target
from core.terminal.typed import edit_lines, typed

PATH = "/v1/chat/completions"
PROMPT = "> "


class Chat:
    """One conversation.

    options: further fields of each request.
    stats: whether a line about speed follows each answer.
    keep: called when the conversation has changed.
    """

    def __init__(
        self,
        target: Target,
        conversation: Conversation,
        options: Mapping[str, Any],
        *,
        stats: bool = False,
        keep: Callable[[], None] = lambda: None,
    ) -> None:
        self.conversation = conversation
        self.screen = Screen()
        self._target = target
        self._options = options
        self._stats = stats
        self._keep = keep

    def turn(self, text: str) -> None:
        """Ask, and show the answer as it comes. Ctrl-C ends an answer, and what there is of it stays.

        Raises CoreError when there is no answer; the question then is taken back.
        """
        self.conversation.ask(text)
        parts: list[str] = []
        counts = Counts()
        try:
            self._target.loop.run(self._answer(parts, counts))
        except KeyboardInterrupt:
            self.screen.end()
            self.screen.note("stopped")
            if not parts:
                self.conversation.take_back()
                return
        except BaseException:
            self.screen.end()
            self.conversation.take_back()
            raise
        self.screen.end()
        self.conversation.answer("".join(parts))
        if self._stats and counts.total_s:
            self.screen.note(counts.line)
        self._keep()

    def run(self) -> int:
        """Turns until the person leaves; returns the exit code."""
        edit_lines()
        self.screen.note(f"{self._target.model}, {self._target.place}. /help for help, Ctrl-D to leave.")
        while True:
            try:
                text = typed(self.screen.prompt(PROMPT))
            except EOFError:
                self.screen.note("")
                return 0
            except KeyboardInterrupt:
                self.screen.note("\nCtrl-D to leave.")
                continue
            if not self._handle(text):
                return 0

    def _handle(self, text: str) -> bool:
        """One message or command; whether the chat goes on."""
        if not text.strip():
            return True
        question: str | None = text
        try:
            if text.startswith("/"):
                question = run_slash(text, self.conversation, self.screen)
                self._keep()
            if question is not None:
                self.turn(question)
        except Leave:
            return False
        except CoreError as error:
            print(f"core chat: {error}", file=sys.stderr)
        return True

    async def _answer(self, parts: list[str], counts: Counts) -> None:
        body = {"model": self._target.model, "messages": self.conversation.request(), **self._options}
        async for piece in generate(self._target.endpoint, PATH, body, counts):
            if piece.kind == "text":
                parts.append(piece.text)
            self.screen.show(piece)
