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
from array import array
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from core.api.errors import CoreError, RequestError
from core_apis.callers.tenant import Tenant
from core_apis.sessions.files import FORMAT, KeptSession, KeyTerms, SessionFiles, Stamp, packed
from core_apis.sessions.store import Session, Sessions
from core_formats.server_limits import ServerLimits
from core_frontend.sessions.turns import Turn
from core_supervision.control import EngineControl

logger = logging.getLogger("core_apis")


class Places(msgspec.Struct):
    """Where the KV of a session is. places: bytes by place; pinned: bytes that its pin holds."""

    places: dict[str, int]
    pinned: int


class SessionService:
    """The sessions of one server process.

    control: of the engine. tenant_name: of an API key, see `Tenants.name`. files: None: sessions end with the server.
    """

    def __init__(
        self,
        limits: ServerLimits,
        control: EngineControl,
        tenant_name: Callable[[Tenant], str],
        files: SessionFiles | None = None,
    ) -> None:
        self.table = Sessions(limits, on_drop=self._dropped)
        self._limits = limits
        self._control = control
        self._tenant_name = tenant_name
        self._files = files
        # Processes that share sessions share pins; any other server has names of its own.
        self._server = secrets.token_hex(8) if files is None else str(files.root)
        self._stamps: dict[tuple[Tenant, str], Stamp] = {}
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

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
        self._pin_again(tenant, session)
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
            self._pin_again(tenant, session)

    async def pin(self, tenant: Tenant, name: str) -> Session:
        """Pin the KV of a session, now and after each turn. Raises RequestError (404; 409 if it has no room or no turn)."""
        session = await self.get(tenant, name)
        if not session.turns:
            raise RequestError(
                f"The session '{name}' has no turn, so there is nothing to pin; ask first.",
                param="name",
                status=409,
                code="session_empty",
            )
        answer = await self._pin(session)
        if not answer["fits"]:
            raise RequestError(
                f"The session '{name}' has no room: pinned sessions may hold {answer['room']} bytes of the KV cache "
                "(--kv-session-share). Unpin or delete another one.",
                param="name",
                status=409,
                code="over_share",
            )
        session.pinned = True
        await self._save(tenant, session)
        return session

    async def unpin(self, tenant: Tenant, name: str) -> Session:
        """End the pin of a session. Raises RequestError (404)."""
        session = await self.get(tenant, name)
        session.pinned = False
        await self._save(tenant, session)
        await self._unpin(tenant, name)
        return session

    async def places(self, session: Session) -> Places | None:
        """Return where the KV of a session is; None while the engine cannot be asked."""
        if not session.turns:
            return Places({}, 0)
        try:
            prefix = _prefix(session)
            answer = await self._control.call("prefix_places", server=self._server, name=session.name, prefix=prefix)
            return msgspec.convert(answer, Places)
        except (CoreError, msgspec.ValidationError) as error:
            logger.debug("The engine does not tell where session '%s' is: %s", session.name, error)
            return None

    def renew(self) -> None:
        """Pin all pinned sessions again: the engine is another one."""
        for tenant in list(self.table.tenants):
            for session in self.table.of(tenant).values():
                self._pin_again(tenant, session)

    async def close(self) -> None:
        """End the work that is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

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
                self.table.forget(tenant, name)
            if kept is not None and stamp is not None:
                self._adopt(tenant, kept, stamp)

    async def _read_all(self, files: SessionFiles, tenant: Tenant) -> None:
        """Read all sessions of a key that have changed, and forget those that another process has deleted."""
        owner = self._tenant_name(tenant)
        known = {name: stamp for (key, name), stamp in self._stamps.items() if key == tenant}
        found = await asyncio.to_thread(files.all, owner, known)
        for name in known.keys() - found.keys():
            del self._stamps[tenant, name]
            self.table.forget(tenant, name)
        for stamp, kept in found.values():
            if kept is not None:
                self._adopt(tenant, kept, stamp)

    def _adopt(self, tenant: Tenant, kept: KeptSession, stamp: Stamp) -> None:
        if time.time() - kept.used < self._limits.kv_session_lifetime:
            self.table.adopt(tenant, kept)
            self._stamps[tenant, kept.name] = stamp

    async def _save(self, tenant: Tenant, session: Session) -> None:
        """Write a session. Where that fails, it is in memory alone, with a warning."""
        files = self._files
        if files is None:
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
            if stamp is not None:
                self._stamps[tenant, kept.name] = stamp

    def _dropped(self, tenant: Tenant, session: Session) -> None:
        """Delete what else there is of a session that goes."""
        self._stamps.pop((tenant, session.name), None)
        if self._files is not None:
            self._files.remove(self._tenant_name(tenant), session.name)
        if session.pinned:
            self._spawn(self._unpin(tenant, session.name))

    # --- pins ---

    def _pin_again(self, tenant: Tenant, session: Session) -> None:
        """Pin a pinned session as it is now, soon. One that lacks room stays pinned as far as it was."""
        if session.pinned:
            self._spawn(self._pin(session) if session.turns else self._unpin(tenant, session.name))

    async def _pin(self, session: Session) -> dict[str, Any]:
        answer: dict[str, Any] = await self._control.call(
            "pin_prefix",
            server=self._server,
            name=session.name,
            prefix=_prefix(session),
            share=self._limits.kv_session_share,
            lifetime=self._limits.kv_session_lifetime,
        )
        return answer

    async def _unpin(self, tenant: Tenant, name: str) -> None:
        await self._control.call("unpin_prefix", server=self._server, name=name, tenant=self._tenant_name(tenant))

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        async def run() -> None:
            try:
                await work
            except CoreError as error:  # an engine that is started again has no pins; the next turn pins again
                logger.debug("A pin of a session was not changed: %s", error)

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _prefix(session: Session) -> dict[str, Any]:
    """Return the tokens of a session and their terms, as the engine takes them."""
    turn = session.turns[-1]
    ids = array("i", turn.ids())
    lengths = sorted({turn.num_prompt, turn.num_tokens})
    return {"tokens": ids.tobytes(), "lengths": lengths, **msgspec.structs.asdict(session.terms)}
