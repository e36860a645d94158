"""The sessions of one server process, by API key.

Owns: `Sessions`: names, limits, lifetimes, forks and rewinds, in memory. Never does: tokenize, wait, or know files and the
engine. Called by: the sessions of a server (`core_apis.sessions.service`).

A key's names mean nothing to another key.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from core.api.errors import RequestError
from core_apis.callers.tenant import Tenant
from core_apis.sessions.files import KeptSession, KeyTerms, unpacked
from core_formats.server_limits import ServerLimits
from core_frontend.queue.common import Column, CommonCounts
from core_frontend.sessions.turns import Turn

MAX_BYTES_PER_KEY = 32 << 20
"""Limit of the memory of one key's sessions: eight million tokens. For more, the longest unused sessions go."""


@dataclass(slots=True)
class Session:
    """One session.

    version: another number after each rewind. used: time of the last use. running: requests under way.
    pinned: whether its KV is to be pinned. terms: of its last request.
    """

    name: str
    version: int
    created: int
    used: float
    turns: list[Turn] = field(default_factory=list)
    running: int = 0
    pinned: bool = False
    terms: KeyTerms = field(default_factory=KeyTerms)

    @property
    def num_bytes(self) -> int:
        """Return the memory of its turns; forks count those that they share, too."""
        return sum(turn.num_bytes for turn in self.turns)


class Sessions:
    """All sessions, those of each key in the order of their use, the newest last.

    clock: seconds. on_drop: called with each session that goes before its lifetime is over.
    common: counts the sessions of each key at other servers too; None: there are none.
    """

    def __init__(
        self,
        limits: ServerLimits,
        clock: Callable[[], float] = time.monotonic,
        on_drop: Callable[[Tenant, Session], None] = lambda tenant, session: None,
        common: CommonCounts | None = None,
    ) -> None:
        self._most = limits.max_sessions_per_key
        self._lifetime = limits.kv_session_lifetime
        self._clock = clock
        self._on_drop = on_drop
        self._common = common
        self._of: dict[Tenant, dict[str, Session]] = {}

    @property
    def tenants(self) -> list[Tenant]:
        """Return the keys that have had sessions."""
        return list(self._of)

    def of(self, tenant: Tenant) -> Mapping[str, Session]:
        """Return the sessions of a key, without those that nobody has used for their lifetime."""
        sessions = self._of.setdefault(tenant, {})
        oldest = self._clock() - self._lifetime
        for session in list(sessions.values()):
            if session.used < oldest and not session.running:
                del sessions[session.name]
                self._publish(tenant)
        return sessions

    def find(self, tenant: Tenant, name: str) -> Session | None:
        """Return a session for a request; None: the request begins it. Raises RequestError if it may not."""
        found = self.of(tenant).get(name)
        if found is None:
            self._check_room(tenant, "session")
        return found

    def get(self, tenant: Tenant, name: str) -> Session:
        """Return a session. Raises RequestError (404)."""
        found = self.of(tenant).get(name)
        if found is None:
            raise RequestError(
                f"There is no session '{name[:128]}'; GET /v1/sessions lists yours, and a request's field session begins one.",
                param="session",
                status=404,
                code="session_not_found",
            )
        return found

    def begin(self, tenant: Tenant, name: str) -> Session:
        """Return the session of a request that runs from now on. Raises RequestError (409) if it is one too many."""
        found = self.find(tenant, name) or self._new(tenant, name)
        self._touch(tenant, found)
        found.running += 1
        return found

    def end(self, tenant: Tenant, session: Session) -> None:
        """End a request of a session; without any turn the session goes."""
        session.running -= 1
        if not session.turns and not session.running and self.has(tenant, session):
            self._drop(tenant, session)

    def keep(self, tenant: Tenant, session: Session, version: int, turn: Turn) -> bool:
        """Add the turn of a request; False for one that ran while the session was rewound or deleted, which is not added."""
        if not self.has(tenant, session) or session.version != version:
            return False
        session.turns.append(turn)
        self._touch(tenant, session)
        self._make_room(tenant, session)
        return self.has(tenant, session)

    def fork(self, tenant: Tenant, name: str, other: str) -> Session:
        """Copy a session with the turns that have ended. Raises RequestError (404, 409)."""
        session = self.get(tenant, name)
        if other in self.of(tenant):
            raise RequestError(
                f"There is a session '{other}' already; take another name, or delete it first.",
                param="name",
                status=409,
                code="session_exists",
            )
        self._check_room(tenant, "name")
        self._touch(tenant, session)
        new = self._new(tenant, other)
        new.turns = list(session.turns)
        self._make_room(tenant, new)
        return new

    def rewind(self, tenant: Tenant, name: str, num_turns: int) -> Session:
        """Drop all turns after the first `num_turns`. Raises RequestError."""
        session = self.get(tenant, name)
        if not 0 <= num_turns <= len(session.turns):
            raise RequestError(
                f"turn is {num_turns}; expected 0 to {len(session.turns)}, the number of the session's turns.",
                param="turn",
            )
        del session.turns[num_turns:]
        session.version = _version()
        self._touch(tenant, session)
        return session

    def remove(self, tenant: Tenant, name: str) -> None:
        """Delete a session; requests that run in it go on. Raises RequestError (404)."""
        self._drop(tenant, self.get(tenant, name))

    def adopt(self, tenant: Tenant, kept: KeptSession) -> Session:
        """Take over a session, or its newer state, from its file."""
        sessions = self._of.setdefault(tenant, {})
        session = sessions.get(kept.name)
        if session is None:
            session = sessions[kept.name] = Session(kept.name, kept.version, kept.created, 0.0)
        session.turns = unpacked(kept)
        session.version, session.pinned, session.terms = kept.version, kept.pinned, kept.terms
        session.used = self._clock() - max(0.0, time.time() - kept.used)
        self._publish(tenant)
        return session

    def forget(self, tenant: Tenant, name: str) -> Session | None:
        """Forget a session whose file is gone; returns it."""
        found = self._of.get(tenant, {}).pop(name, None)
        self._publish(tenant)
        return found

    def _drop(self, tenant: Tenant, session: Session) -> None:
        del self._of[tenant][session.name]
        self._publish(tenant)
        self._on_drop(tenant, session)

    def _new(self, tenant: Tenant, name: str) -> Session:
        session = Session(name, _version(), int(time.time()), self._clock())
        self._of[tenant][name] = session
        self._publish(tenant)
        return session

    def _publish(self, tenant: Tenant) -> None:
        """Tell other servers how many sessions a key has here, and until when at most."""
        if self._common is None:
            return
        sessions = self._of.get(tenant, {})
        last = max((session.used for session in sessions.values()), default=0.0) + self._lifetime
        if any(session.running for session in sessions.values()):
            last += self._lifetime
        self._common.set(tenant, Column.SESSIONS, len(sessions))
        self._common.set(tenant, Column.SESSIONS_END, int(last * 1e3))

    def _touch(self, tenant: Tenant, session: Session) -> None:
        session.used = self._clock()
        sessions = self._of[tenant]
        sessions[session.name] = sessions.pop(session.name)
        self._publish(tenant)

    def has(self, tenant: Tenant, session: Session) -> bool:
        """Whether a session has not gone."""
        return self._of.get(tenant, {}).get(session.name) is session

    def _check_room(self, tenant: Tenant, field: str) -> None:
        """Raise RequestError if a key can have no further session. field: the one that names it."""
        if not self._most:
            raise RequestError(
                "This server keeps no sessions (--max-sessions-per-key 0, or several API processes, which share sessions only "
                "in files: --kv-offloading-disk-path); leave session out.",
                param=field,
            )
        num = len(self.of(tenant)) + self._elsewhere(tenant)
        if num >= self._most and self._common is not None:
            self._common.forget_dead()
            num = len(self.of(tenant)) + self._elsewhere(tenant)
        if num >= self._most:
            raise RequestError(
                f"There are {num} sessions, and a key may have {self._most} (--max-sessions-per-key); delete one "
                "(DELETE /v1/sessions/NAME).",
                param=field,
                status=409,
                code="too_many_sessions",
            )

    def _elsewhere(self, tenant: Tenant) -> int:
        """Return the sessions of a key at other servers."""
        if self._common is None:
            return 0
        return self._common.unexpired(tenant, Column.SESSIONS, Column.SESSIONS_END)

    def _make_room(self, tenant: Tenant, session: Session) -> None:
        """Drop the longest unused sessions of a key, which hold too much together; the given one last."""
        sessions = self._of[tenant]
        num_bytes = sum(other.num_bytes for other in sessions.values())
        for other in [*(other for other in sessions.values() if other is not session), session]:
            if num_bytes <= MAX_BYTES_PER_KEY:
                break
            num_bytes -= other.num_bytes
            self._drop(tenant, other)


def _version() -> int:
    """Return a number that no process gives twice."""
    return secrets.randbits(62)
