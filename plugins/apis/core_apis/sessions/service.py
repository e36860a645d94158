"""The sessions of a server: in memory, in files where there is a directory for them, and pinned in the engine.

Owns: the order of these: a session is read again before it is used, if its file is newer, and written after each change; a
pinned session is pinned again after each turn. Never does: tokenize, run requests, or render answers. Called by: the
routes of /v1/sessions, requests with a session.

Sessions outlive the engine. With a directory they outlive the server, and several API processes share them. Where two of
them change one session in the same moment, the later change stays: a lost turn costs tokens that are read from text again.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable

from core_apis.callers.tenant import Tenant
from core_apis.sessions.files import FORMAT, KeptSession, KeyTerms, SessionFiles, Stamp, packed
from core_apis.sessions.pins import PinCalls
from core_apis.sessions.store import Session, Sessions
from core_formats.server_limits import ServerLimits
from core_frontend.queue.common import CommonCounts
from core_frontend.sessions.turns import Turn
from core_supervision.control import EngineControl

logger = logging.getLogger("core_apis")


class SessionService:
    """The sessions of one server process.

    control: of the engine. tenant_name: of an API key, see `Tenants.name`. files: None: sessions end with the server.
    caches: see `PinCalls`. common: counts of each key at other servers too.
    table: the sessions in memory. pins: those of its sessions.
    """

    def __init__(
        self,
        limits: ServerLimits,
        control: EngineControl,
        tenant_name: Callable[[Tenant], str],
        files: SessionFiles | None = None,
        *,
        caches: bool = True,
        common: CommonCounts | None = None,
    ) -> None:
        self.table = Sessions(limits, on_drop=self._dropped, common=common)
        self._limits = limits
        # Processes that share sessions share pins; any other server has names of its own.
        server = secrets.token_hex(8) if files is None else str(files.root)
        self.pins = PinCalls(limits, control, server, caches=caches)
        self._tenant_name = tenant_name
        self._files = files
        self._stamps: dict[tuple[Tenant, str], Stamp] = {}
        self._lock = asyncio.Lock()

    async def all(self, tenant: Tenant) -> list[Session]:
        """Return the sessions of a key, the one used last at the end."""
        if self._files is not None:
            async with self._lock:
                await self._read_all(self._files, tenant)
        return list(self.table.of(tenant).values())

    async def find(self, tenant: Tenant, name: str) -> Session | None:
        """Return a session for a request; None: the request begins it. Raises RequestError if it may not."""
        await self._refresh(tenant, name)
        if name not in self.table.of(tenant):
            await self.all(tenant)  # whether there is room for one more depends on all of them
        return self.table.find(tenant, name)

    async def get(self, tenant: Tenant, name: str) -> Session:
        """Return a session. Raises RequestError (404)."""
        await self._refresh(tenant, name)
        return self.table.get(tenant, name)

    async def fork(self, tenant: Tenant, name: str, other: str) -> Session:
        """Copy a session. Raises RequestError (404, 409)."""
        await self.all(tenant)
        new = self.table.fork(tenant, name, other)
        new.terms = self.table.get(tenant, name).terms
        await self._save(tenant, new)
        return new

    async def rewind(self, tenant: Tenant, name: str, num_turns: int) -> Session:
        """Drop all turns after the first `num_turns`. Raises RequestError."""
        await self._refresh(tenant, name)
        session = self.table.rewind(tenant, name, num_turns)
        await self._save(tenant, session)
        self._follow(tenant, session)
        return session

    async def remove(self, tenant: Tenant, name: str) -> None:
        """Delete a session with its file and its pin. Raises RequestError (404)."""
        await self._refresh(tenant, name)
        self.table.remove(tenant, name)

    async def keep(self, tenant: Tenant, session: Session, version: int, turn: Turn, terms: KeyTerms) -> None:
        """Add the turn of a request, unless the session was rewound or deleted meanwhile."""
        await self._refresh(tenant, session.name)
        if self.table.keep(tenant, session, version, turn):
            session.terms = terms
            await self._save(tenant, session)
            self._follow(tenant, session)

    async def pin(self, tenant: Tenant, name: str) -> Session:
        """Pin the KV of a session, now and after each turn. Raises RequestError (404; 409 if it has no room or no turn)."""
        session = await self.get(tenant, name)
        await self.pins.pin(session)
        session.pinned = True
        if not self.table.has(tenant, session):  # deleted meanwhile
            self._dropped(tenant, session)
            return self.table.get(tenant, name)
        await self._save(tenant, session)
        return session

    async def unpin(self, tenant: Tenant, name: str) -> Session:
        """End the pin of a session. Raises RequestError (404)."""
        session = await self.get(tenant, name)
        session.pinned = False
        await self._save(tenant, session)
        await self.pins.unpin(self._tenant_name(tenant), name)
        return session

    def renew(self) -> None:
        """Pin all pinned sessions again, soon: the engine is another one."""
        for tenant in self.table.tenants:
            self.pins.spawn(self._renew(tenant))

    async def _renew(self, tenant: Tenant) -> None:
        for session in await self.all(tenant):  # without those that another process has deleted
            self._follow(tenant, session)

    def _follow(self, tenant: Tenant, session: Session) -> None:
        """Pin a pinned session as it is now, soon. One that lacks room stays pinned as far as it was."""
        if session.pinned:
            self.pins.spawn(self._pin_again(tenant, session))

    async def _pin_again(self, tenant: Tenant, session: Session) -> None:
        owner = self._tenant_name(tenant)
        await self.pins.renew(owner, session)
        await self._refresh(tenant, session.name)
        current = self.table.of(tenant).get(session.name)
        if current is None or not current.pinned:  # another process has ended the pin before it was renewed
            await self.pins.unpin(owner, session.name)

    # --- files ---

    async def _refresh(self, tenant: Tenant, name: str) -> None:
        """Read a session again if its file has changed."""
        files = self._files
        if files is None:
            return
        async with self._lock:
            owner = self._tenant_name(tenant)
            stamp = files.stamp(owner, name)
            if stamp == self._stamps.get((tenant, name)):
                return
            kept = await asyncio.to_thread(files.load, owner, name)
            if kept is None and self._stamps.pop((tenant, name), None) is not None:
                self._forget(tenant, name)
            if kept is not None and stamp is not None:
                self._adopt(tenant, kept, stamp)

    async def _read_all(self, files: SessionFiles, tenant: Tenant) -> None:
        """Read all sessions of a key that have changed, and forget those that another process has deleted."""
        owner = self._tenant_name(tenant)
        known = {name: stamp for (key, name), stamp in self._stamps.items() if key == tenant}
        found = await asyncio.to_thread(files.all, owner, known)
        for name in known.keys() - found.keys():
            del self._stamps[tenant, name]
            self._forget(tenant, name)
        changed = [(kept, stamp) for stamp, kept in found.values() if kept is not None]
        for kept, stamp in sorted(changed, key=lambda each: each[0].used):
            self._adopt(tenant, kept, stamp)

    def _adopt(self, tenant: Tenant, kept: KeptSession, stamp: Stamp) -> None:
        if time.time() - kept.used < self._limits.kv_session_lifetime:
            self.table.adopt(tenant, kept)
            self._stamps[tenant, kept.name] = stamp

    async def _save(self, tenant: Tenant, session: Session) -> None:
        """Write a session, unless it is gone. Where that fails, it is in memory alone, with a warning."""
        files = self._files
        if files is None or not self.table.has(tenant, session):
            return
        turns, shown = packed(session.turns)
        kept = KeptSession(
            FORMAT,
            session.name,
            session.version,
            session.created,
            time.time(),
            turns,
            shown,
            session.pinned,
            session.terms,
        )
        owner = self._tenant_name(tenant)
        async with self._lock:
            try:
                await asyncio.to_thread(files.save, owner, kept)
                await asyncio.to_thread(files.sweep, owner, self._limits.kv_session_lifetime)
            except OSError as error:
                logger.warning(
                    "Session '%s' could not be written, so it will not survive a restart: %s", kept.name, error
                )
                return
            stamp = files.stamp(owner, kept.name)
            if not self.table.has(tenant, session):  # deleted while it was written
                files.remove(owner, kept.name)
            elif stamp is not None:
                self._stamps[tenant, kept.name] = stamp

    def _forget(self, tenant: Tenant, name: str) -> None:
        """Forget a session whose file is gone, deleted by another process or by whoever emptied the directory."""
        session = self.table.forget(tenant, name)
        if session is not None:
            self.pins.drop(self._tenant_name(tenant), session)

    def _dropped(self, tenant: Tenant, session: Session) -> None:
        """Delete what else there is of a session that goes."""
        self._stamps.pop((tenant, session.name), None)
        if self._files is not None:
            self._files.remove(self._tenant_name(tenant), session.name)
        self.pins.drop(self._tenant_name(tenant), session)
