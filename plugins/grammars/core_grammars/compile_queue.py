"""The queue of grammars waiting for a helper, served round-robin by tenant.

Owns: `CompileQueue`: the order of tenants, and their limits on waiting and concurrent grammars. Never does: compile, or
lock (its caller holds a lock). Called by: `core_grammars.compiler`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque

from core.api.errors import RequestError
from core.api.structured_outputs import FIELD

MAX_WAITING = 512
"""Limit on distinct waiting grammars where there are no tenants."""
MAX_WAITING_OF_TENANT = 64
"""Limit on distinct waiting grammars per tenant. Tenants do not use up each other's places."""


class CompileQueue:
    """The keys of waiting grammars. num_helpers: number of concurrent compilations.

    With two or more tenants, none of them occupies all helpers, so one tenant's slow grammars delay only its own.
    """

    def __init__(self, num_helpers: int) -> None:
        self._num_helpers = num_helpers
        self._lines: OrderedDict[str, deque[bytes]] = OrderedDict()
        self._waiting: set[bytes] = set()
        self._running: Counter[str] = Counter()
        self._first: str | None = None
        self._is_shared = False

    def __contains__(self, key: object) -> bool:
        return key in self._waiting

    def put(self, tenant: str, key: bytes) -> None:
        """Add a grammar to a tenant's line, even if it already waits in another's. Raises RequestError when the line is
        full.
        """
        line = self._lines.get(tenant, deque())
        if key in line:
            return
        if key not in self._waiting:
            self._check(tenant, line)
        line.append(key)
        self._lines[tenant] = line
        self._waiting.add(key)
        if self._first is None:
            self._first = tenant
        self._is_shared = self._is_shared or tenant != self._first

    def take(self) -> tuple[str, bytes] | None:
        """Return the next tenant and grammar, which counts as being compiled until `done`; None when none may start."""
        for tenant in list(self._lines):
            if self._is_shared and self._running[tenant] >= self._num_helpers - 1:
                continue
            key = self._next(tenant)
            if key is not None:
                self._running[tenant] += 1
                return tenant, key
        return None

    def done(self, tenant: str) -> None:
        """Mark a grammar taken for this tenant as compiled."""
        self._running[tenant] -= 1
        if not self._running[tenant]:
            del self._running[tenant]

    def clear(self) -> list[bytes]:
        """Remove and return all waiting grammars."""
        keys = list(self._waiting)
        self._waiting.clear()
        self._lines.clear()
        return keys

    def _next(self, tenant: str) -> bytes | None:
        """Return a tenant's first waiting grammar and end its turn."""
        line = self._lines.pop(tenant)
        while line:
            key = line.popleft()
            if key in self._waiting:  # otherwise another tenant's turn came first
                self._waiting.remove(key)
                if line:
                    self._lines[tenant] = line
                return key
        return None

    def _check(self, tenant: str, line: deque[bytes]) -> None:
        most = MAX_WAITING_OF_TENANT if tenant else MAX_WAITING
        if sum(key in self._waiting for key in line) < most:
            return
        whose = " of this API key" if tenant else ""
        raise RequestError(
            f"{most} grammars{whose} wait to be compiled already; try again in a few seconds.",
            param=FIELD,
            status=429 if tenant else 503,
            code="key_limit_reached" if tenant else "server_busy",
            retry_after=2,
        )
