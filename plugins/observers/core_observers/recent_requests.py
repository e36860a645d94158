"""The requests that ran last, for a timeline that people look at.

Owns: `RecentRequests`, a bounded list. Never does: keep texts. Called by: the server (each prompt of a request is
entered, its meter writes to its entry), the page.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Final

MOST_REQUESTS: Final = 256


@dataclass(slots=True)
class RecentRequest:
    """One prompt. Times are seconds since the epoch.

    id: of the answer that it belongs to.
    tenant: number of its API key; None without keys.
    begin: when it reached the engine.
    first_token: None until there is one.
    end: None while it runs.
    num_prompt_tokens, num_cached_tokens: known with the first token.
    num_tokens: number of generated tokens so far.
    reason: why it ended; None while it runs.
    """

    id: str
    tenant: int | None
    begin: float = field(default_factory=time.time)
    first_token: float | None = None
    end: float | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_tokens: int = 0
    reason: str | None = None

    def close(self, reason: str) -> None:
        """Note the end of the prompt; the first reason counts."""
        if self.end is None:
            self.end = time.time()
            self.reason = reason


class RecentRequests:
    """The latest `MOST_REQUESTS` prompts, oldest first."""

    def __init__(self) -> None:
        self._entries: deque[RecentRequest] = deque(maxlen=MOST_REQUESTS)

    def enter(self, request_id: str, tenant: int | None) -> RecentRequest:
        """Add the entry of a prompt that begins."""
        entry = RecentRequest(request_id, tenant)
        self._entries.append(entry)
        return entry

    def of(self, tenant: int | None) -> list[RecentRequest]:
        """Return the entries of one API key."""
        return [entry for entry in self._entries if entry.tenant == tenant]
