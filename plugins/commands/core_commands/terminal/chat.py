"""A chat in a terminal: a question, its answer as it comes, the next question.

Owns: the turns, and what becomes of the conversation when one fails. Never does: ask or show (the teller does), read arguments.
Called by: `core chat`.
"""

from __future__ import annotations

from collections.abc import Callable

from core_commands.terminal.conversation import Conversation, Snapshot
from core_commands.terminal.slash import COMMANDS, Leave, run_slash
from core_commands.terminal.teller import Teller

PATH = "/v1/chat/completions"


class Chat:
    """One conversation. keep: called when it has changed."""

    def __init__(self, teller: Teller, conversation: Conversation, keep: Callable[[], None] = lambda: None) -> None:
        self.conversation = conversation
        self._teller = teller
        self._keep = keep

    def run(self) -> int:
        """Turns until the person leaves; returns the exit code."""
        commands = [f"/{name}" for name in COMMANDS]
        hints = [*self._given(), "/help for help, Ctrl-D to leave."]
        return self._teller.converse("chat", "\n".join(hints), self._handle, commands)

    def turn(self, text: str) -> bool:
        """Ask, and show the answer as it comes; whether it is whole. What there is of one that Ctrl-C ended stays.

        Raises CoreError when there is no answer; the conversation then is as before.
        """
        return self._ask(text, self.conversation.snapshot())

    def _given(self) -> list[str]:
        """What the conversation holds before the first turn, as it is not shown again."""
        given: list[str] = []
        if self.conversation.messages:
            given.append(f"The conversation goes on; messages so far: {len(self.conversation.messages)}.")
        if self.conversation.files:
            names = ", ".join(name for name, _ in self.conversation.files)
            given.append(f"With the next message goes {names}.")
        return given

    def _handle(self, text: str) -> bool:
        """One message or command; whether the chat goes on."""
        before = self.conversation.snapshot()
        question: str | None = text
        if text.startswith("/"):
            try:
                question = run_slash(text, self.conversation, self._teller.screen)
            except Leave:
                return False
        if question is None:
            self._keep()
        else:
            self._ask(question, before)
        return True

    def _ask(self, text: str, before: Snapshot) -> bool:
        """One turn. before: the conversation that a turn without an answer leaves."""
        self.conversation.ask(text)
        try:
            told = self._teller.tell({"messages": self.conversation.request()})
        except BaseException:
            self.conversation.restore(before)
            raise
        if told.text or told.is_whole:
            self.conversation.answer(told.text)
            self._keep()
        else:
            self.conversation.restore(before)
        return told.is_whole
