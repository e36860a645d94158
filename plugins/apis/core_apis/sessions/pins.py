"""The pins of a server's sessions: what it asks of the engine.

Owns: the calls, and those that nobody waits for. Never does: know files, or hold a block (`core_observers.engine.session_pins`
does, in the engine). Called by: the sessions of a server.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Coroutine
from typing import Any

import msgspec

from core.api.errors import CoreError, RequestError
from core_apis.sessions.store import Session
from core_formats.server_limits import ServerLimits
from core_supervision.control import EngineControl

logger = logging.getLogger("core_apis")


class Places(msgspec.Struct):
    """Where the KV of a session is. places: bytes by place. pinned, held: bytes that its pin holds in the pool, and with
    connectors."""

    places: dict[str, int]
    pinned: int
    held: int = 0


class PinCalls:
    """The calls of one server.

    server: under which its pins are known. caches: whether the engine caches prefixes; otherwise there is nothing to pin.
    """

    def __init__(self, limits: ServerLimits, control: EngineControl, server: str, *, caches: bool) -> None:
        self._limits = limits
        self._control = control
        self._server = server
        self._caches = caches
        self._tasks: set[asyncio.Task[None]] = set()

    async def pin(self, session: Session) -> None:
        """Pin a session. Raises RequestError: 409 if it has no room or no turn."""
        if not self._caches:
            raise RequestError(
                "This engine caches no prefixes (--no-enable-prefix-caching), so none can be pinned; start it without that, or "
                "leave the pin out."
            )
        if not session.turns:
            raise RequestError(
                f"The session '{session.name}' has no turn, so there is nothing to pin; ask first.",
                param="name",
                status=409,
                code="session_empty",
            )
        answer = await self._pin(session)
        if not answer["fits"]:
            raise RequestError(
                f"The session '{session.name}' has no room: pinned sessions may hold {answer['room']} bytes of the KV cache, "
                "and as large a part of host memory and disks (--kv-session-share). Unpin or delete another one.",
                param="name",
                status=409,
                code="over_share",
            )

    async def unpin(self, tenant: str, name: str) -> None:
        """End a pin, if there is one. tenant: see `Tenants.name`."""
        if self._caches:
            await self._control.call("unpin_prefix", server=self._server, name=name, tenant=tenant)

    async def places(self, session: Session) -> Places | None:
        """Return where the KV of a session is; None while the engine cannot be asked."""
        if not session.turns or not self._caches:
            return Places({}, 0)
        try:
            prefix = _prefix(session)
            answer = await self._control.call("prefix_places", server=self._server, name=session.name, prefix=prefix)
            return msgspec.convert(answer, Places)
        except (CoreError, msgspec.ValidationError) as error:
            logger.debug("The engine does not tell where session '%s' is: %s", session.name, error)
            return None

    async def renew(self, tenant: str, session: Session) -> None:
        """Pin a session as it is now; without a turn its pin ends."""
        if not session.turns:
            await self.unpin(tenant, session.name)
        elif self._caches:
            await self._pin(session)

    def drop(self, tenant: str, session: Session) -> None:
        """End the pin of a session that goes, soon."""
        if session.pinned:
            self.spawn(self.unpin(tenant, session.name))

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do something that nobody waits for."""

        async def run() -> None:
            try:
                await work
            except CoreError as error:  # an engine that is started again has no pins; the next turn pins again
                logger.debug("A pin of a session was not changed: %s", error)

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End the calls that are under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

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


def _prefix(session: Session) -> dict[str, Any]:
    """Return the tokens of a session and their terms, as the engine takes them."""
    turn = session.turns[-1]
    tokens = array("I", turn.ids()).tobytes()
    lengths = sorted({turn.num_prompt, turn.num_tokens})
    return {"tokens": tokens, "lengths": lengths, **msgspec.structs.asdict(session.terms)}
