"""A journal of requests as a log: the chats that a server has accepted (`--request-journal`).

Owns: reading them. Never does: lock or change the journal, so a server may use it meanwhile. Called by: `core kv audit`.

The journal keeps rendered prompts with their histories, not bodies. What has ended stays readable until its file is removed.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from core.api.errors import UNREADABLE, UserError
from core_apis.histories.trace import History
from core_apis.journal.browsing import browse, journal_files
from core_apis.journal.records import Accepted, Kind


class KeptPrompt(msgspec.Struct):
    """The part of a kept prompt that an audit needs."""

    text: str | None
    token_ids: list[int]


class KeptBody(msgspec.Struct):
    """The fields of a kept body on which the sharing of prefixes depends."""

    cache_salt: str | None = None
    user: str | None = None


class KeptChat(msgspec.Struct):
    """The part of a kept chat that an audit needs; see `PreparedChat`."""

    body: KeptBody
    model: str
    prompts: list[KeptPrompt]
    first_turn: bool = False
    history: History | None = None


class KeptResponse(msgspec.Struct):
    """A kept body of /v1/responses: the chat that it became."""

    chat: KeptChat


class Recorded(msgspec.Struct, frozen=True):
    """A chat of a journal. line: number of its entry. tenant: digest of its API key."""

    line: int
    tenant: bytes
    chat: KeptChat

    @property
    def path(self) -> str:
        """Return the path to which `body` can be sent."""
        return "/v1/completions"

    @property
    def body(self) -> dict[str, object]:
        """Return a request with the same prompt."""
        salt = {} if self.chat.body.cache_salt is None else {"cache_salt": self.chat.body.cache_salt}
        return {"model": self.chat.model, "prompt": self.chat.prompts[0].token_ids, **salt}


def read_journal(name: str) -> Iterator[Recorded]:
    """Yield the chats of a journal in the order of their acceptance. Raises UserError."""
    if not journal_files(name):
        raise UserError(f"{name}: the directory has no journal; expected that of --request-journal.")
    found: dict[int, Accepted] = {}
    try:
        for frame in browse(name):
            if frame.kind is Kind.ACCEPTED:
                found[frame.entry] = msgspec.msgpack.decode(frame.payload, type=Accepted)
        for number in sorted(found):
            chat = _chat(found[number])
            if chat is not None and chat.prompts:
                yield Recorded(number, found[number].tenant, chat)
    except UNREADABLE as error:
        raise UserError(f"{name}: a record has a form that this version does not know ({error}).") from None


def _chat(accepted: Accepted) -> KeptChat | None:
    """Return the chat of an entry; None for completions, which have no history."""
    if accepted.kind == "chat":
        return msgspec.msgpack.decode(accepted.body, type=KeptChat)
    if accepted.kind == "response":
        return msgspec.msgpack.decode(accepted.body, type=KeptResponse).chat
    return None
