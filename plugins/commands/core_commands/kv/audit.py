"""What each turn of logged conversations computes again although an earlier prompt had it.

Owns: `Audit`, and its rows. Never does: load weights, or speak to a server. Called by: `core kv audit`.

An audit sees prompts, not answers: a prompt that begins with all of an earlier one counts as extending it, whatever tokens
the answer between them had.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import msgspec

from core.api.errors import RequestError
from core_apis.histories.compare import change
from core_apis.histories.trace import History, Trace, num_common
from core_apis.prepare.preparation import Preparation
from core_apis.prepare.prepared import PreparedChat
from core_commands.kv.journal_log import KeptChat, Recorded
from core_commands.kv.log_file import Logged
from core_frontend.api.explanation import Change

REFUSED = "refused"
"""The cause of a row of a request that no server would take, or that cannot be compared."""
NO_HISTORY = (
    "Only the end of the prompt is used (truncate_prompt_tokens), so each turn begins elsewhere; or the server of this journal "
    "remembered nothing (--explain-answers off)."
)


class Row(msgspec.Struct, kw_only=True):
    """One turn.

    line:    its line in the log.
    tokens:  of its prompt.
    common:  tokens at its start that an earlier prompt of its conversation has, too.
    again:   tokens of that earlier prompt after those: they are computed again, or were for nothing.
    cause:   `first_seen`, `extends`, `refused`, or a cause of docs/explain.md.
    change:  what differs; None where nothing does.
    cached:  tokens that a server found cached; None: no server was asked, or it does not report them.
    """

    line: int
    tokens: int = 0
    common: int = 0
    again: int = 0
    cause: str
    advice: str = ""
    change: Change | None = None
    cached: int | None = None


@dataclass(slots=True)
class Prompt:
    """An earlier prompt. ids: 4 bytes a token."""

    owner: tuple[object, ...]
    history: History
    trace: Trace
    text: str
    ids: bytes


class Audit:
    """The audit of one log, whose bodies `preparation` prepares."""

    def __init__(self, preparation: Preparation) -> None:
        self._preparation = preparation
        self._earlier: list[Prompt] = []

    def row(self, logged: Logged | Recorded) -> Row:
        """Return the row of the next request of the log."""
        try:
            chat = self._chat(logged)
        except RequestError as error:
            return Row(line=logged.line, cause=REFUSED, advice=str(error))
        given = chat.prompts[0]
        if chat.history is None:
            advice = NO_HISTORY
            return Row(line=logged.line, tokens=len(given.token_ids), cause=REFUSED, advice=advice)
        owner = getattr(logged, "tenant", b""), chat.body.cache_salt, chat.body.user
        ids = array("I", given.token_ids).tobytes()
        prompt = Prompt(owner, chat.history, chat.history.trace, given.text or "", ids)
        row = self._compared(logged.line, prompt, first_turn=chat.first_turn)
        self._earlier.append(prompt)
        return row

    def _chat(self, logged: Logged | Recorded) -> PreparedChat | KeptChat:
        """Return a chat with its prompt. Raises RequestError for a body that no server would take."""
        if isinstance(logged, Recorded):
            return logged.chat
        prepared = self._preparation.run(logged.kind, msgspec.json.encode(logged.body))
        chat: PreparedChat = getattr(prepared, "chat", prepared)
        return chat

    def _compared(self, line: int, prompt: Prompt, *, first_turn: bool) -> Row:
        num_tokens = len(prompt.ids) // 4
        earlier, common = self._nearest(prompt)
        if earlier is None:
            return Row(line=line, tokens=num_tokens, cause="first_seen")
        again = len(earlier.ids) // 4 - common
        if not again or common == num_tokens:
            return Row(line=line, tokens=num_tokens, common=common, cause="extends")
        if first_turn:
            return Row(line=line, tokens=num_tokens, common=common, cause="first_seen")
        place = num_common(earlier.text, prompt.text)
        if place == len(earlier.text):  # the texts agree, so the tokens alone differ
            place = len(self._preparation.tokenizer.decode(_ids(prompt.ids, common), skip_special_tokens=False))
            place = min(place, len(earlier.text) - 1)
        found = change(earlier.history, "", prompt.history, prompt.text, place)
        return Row(
            line=line,
            tokens=num_tokens,
            common=common,
            again=again,
            cause=found.cause,
            advice=found.advice,
            change=found,
        )

    def _nearest(self, prompt: Prompt) -> tuple[Prompt | None, int]:
        """Return the earlier prompt of the same conversation, and how many tokens are common.

        It is the one with the most equal messages, of several the one with the most common tokens, then the newest.
        """
        found: Prompt | None = None
        best = (0, 0)
        for earlier in self._earlier:
            if earlier.owner != prompt.owner:
                continue
            common = num_common(earlier.ids, prompt.ids) // 4
            equal = num_common(earlier.trace.messages, prompt.trace.messages)
            score = (equal, common)
            if score >= best and (equal or common):
                found, best = earlier, score
        return found, best[1]


def _ids(packed: bytes, stop: int) -> list[int]:
    return memoryview(packed).cast("I")[:stop].tolist()
