"""The memory of earlier conversations of one server process, by tenant.

Owns: `Histories`: what is kept, for how long, and who hears of it. Never does: judge (`core_apis.histories.compare` does).
Called by: the run of a chat, at its end.

An owner is an API key, a salt and a user, as for the engine's own past prefixes: what is kept of one is never compared with
a request of another.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

from core_apis.histories.compare import change
from core_apis.histories.trace import CHUNK, History
from core_frontend.api.explanation import Change, Miss
from core_tokens.tokenizer import Tokenizer

MAX_BYTES = 16 << 20
ENTRY_BYTES = 512
"""Size of an entry besides its history and answer, at most."""
MOST_COMPARED = 256
"""Number of an owner's newest conversations among which the earlier one is looked for."""
LONGEST_ANSWER = 64 * 1024
"""Number of characters up to which an answer is kept."""
MATCH = 48
"""Number of characters by which a token's place is checked in the text."""


class Owner(NamedTuple):
    """The owner of a conversation. tenant: of its API key; empty without keys."""

    tenant: str
    salt: str | None
    user: str


class Kept(NamedTuple):
    """A conversation. history: of the prompt with its answer."""

    history: History
    answer: str

    @property
    def num_bytes(self) -> int:
        """Return its size."""
        return ENTRY_BYTES + self.history.num_bytes + 2 * len(self.answer)


class Histories:
    """The newest conversations of all owners, within `max_bytes`; those used longest ago are dropped first."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._numbers = count()
        self._kept: OrderedDict[int, tuple[Owner, Kept]] = OrderedDict()
        self._by_owner: dict[Owner, dict[int, Kept]] = {}

    def remember(self, owner: Owner, history: History, text: str, answer: str) -> None:
        """Remember the prompt `text` of this history, and its answer."""
        shown = answer[:LONGEST_ANSWER]
        kept = Kept(history.going_on(text, shown), shown)
        if kept.num_bytes > self.max_bytes:
            return
        number = next(self._numbers)
        self._kept[number] = owner, kept
        self._by_owner.setdefault(owner, {})[number] = kept
        self.num_bytes += kept.num_bytes
        while self.num_bytes > self.max_bytes:
            self._drop()

    async def explain(
        self, owner: Owner, history: History, text: str, miss: Miss, token_ids: Sequence[int], tokenizer: Tokenizer
    ) -> None:
        """Replace the cause of a miss with what this memory knows of it. token_ids: of the prompt `text`.

        The work is as large as the prompt, so it is done in a thread.
        """
        earlier = list(self._by_owner.get(owner, {}).values())[-MOST_COMPARED:]
        if miss.cause != "history_changed" or miss.differs_at is None or not earlier:
            return
        before = token_ids[: miss.differs_at]
        found = await asyncio.to_thread(_found, earlier, history, text, before, tokenizer)
        if found is not None:
            miss.change = found
            miss.cause = found.cause

    def _drop(self) -> None:
        number, (owner, kept) = self._kept.popitem(last=False)
        own = self._by_owner[owner]
        del own[number]
        if not own:
            del self._by_owner[owner]
        self.num_bytes -= kept.num_bytes


def _found(
    earlier: Sequence[Kept], history: History, text: str, before: Sequence[int], tokenizer: Tokenizer
) -> Change | None:
    """Return the change from the conversation with the longest common start, of several the newest.

    None if the engine's place is not in its text: then it compared with a conversation that is no longer remembered.
    """
    place = _place(text, tokenizer.decode(list(before), skip_special_tokens=False))
    if place is None:
        return None
    num_common, kept = -1, None
    for candidate in reversed(earlier):
        common = candidate.history.num_common(history, text)
        if common > num_common:
            num_common, kept = common, candidate
    if kept is None or num_common + CHUNK <= place:
        return None
    return change(kept.history, kept.answer, history, text, place)


def _place(text: str, shown: str) -> int | None:
    """Return the place in `text` behind its beginning `shown`, which may have tokens before the text; None if unknown."""
    if text.startswith(shown):
        return len(shown)
    end = shown[-MATCH:]
    around = max(0, len(shown) - len(end) - MATCH)
    at = text.find(end, around, len(shown) + MATCH)
    return None if at < 0 else at + len(end)
