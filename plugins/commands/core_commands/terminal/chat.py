"""A chat in a terminal: a question, its streamed answer, the next question.

Owns: the turns, and the conversation's state when one fails. Never does: send or display (the teller does), parse
arguments.
Called by: `core chat`.
"""

from __future__ import annotations

from collections.abc import Callable

from core_commands.terminal.answers import Teller
from core_commands.terminal.conversation import Conversation, Snapshot
from core_commands.terminal.slash import COMMANDS, Leave, run_slash

PATH = "/v1/chat/completions"


class Chat:
    """A chat over one conversation. keep: called when the conversation has changed."""

    def __init__(self, teller: Teller, conversation: Conversation, keep: Callable[[], None] = lambda: None) -> None:
        self.conversation = conversation
        self._teller = teller
        self._keep = keep

    def run(self) -> int:
        """Run turns until the user leaves; returns the exit code."""
        commands = [f"/{name}" for name in COMMANDS]
        hints = [*self._given(), "/help for help, Ctrl-D to leave."]
        return self._teller.converse("chat", "\n".join(hints), self._handle, commands)

    def turn(self, text: str) -> bool:
        """Send `text` and show the streamed answer; returns whether it is complete. The part before a Ctrl-C is kept.

        Raises CoreError when there is no answer; the conversation is then unchanged.
        """
        return self._ask(text, self.conversation.snapshot())

    def _given(self) -> list[str]:
        """Summarize the conversation before the first turn, which is not displayed again."""
        given: list[str] = []
        if self.conversation.messages:
            given.append(f"The conversation goes on; messages so far: {len(self.conversation.messages)}.")
        if self.conversation.files:
            names = ", ".join(name for name, _ in self.conversation.files)
            given.append(f"With the next message goes {names}.")
        return given

    def _handle(self, text: str) -> bool:
        """Handle one message or command; returns whether the chat continues."""
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
        """Run one turn. before: the conversation to restore after a turn without an answer."""
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
