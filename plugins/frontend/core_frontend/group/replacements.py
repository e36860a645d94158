"""Engines of a group whose process somebody asks to end with SIGTERM: an operator, or what watches the memory of a machine.

Owns: `Replacements`: the order of relief, end and next engine. Never does: move a request, or start a process by itself. Called
by: the group's client, whose engines this process has started.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from core.api.errors import EngineDeadError
from core_frontend.group.client import GroupClient
from core_frontend.group.member import Member
from core_frontend.group.orders import Drained
from core_frontend.group.recovery import GroupRecovery

logger = logging.getLogger(__name__)

SETTLE_S: Final = 0.3
"""Seconds between SIGTERM and acting on it: a service manager sends it to the server as well, which then ends all engines."""


class Relief(Protocol):
    """Has the requests of an engine go on in others."""

    def relieve(self, index: int) -> asyncio.Future[Drained] | None:
        """Begin; None where no other engine takes requests."""
        ...


class Replacements:
    """The replacements of one front. An end that is asked for counts as no death."""

    def __init__(self, relief: Relief, group: GroupClient, recovery: GroupRecovery) -> None:
        self._relief = relief
        self._group = group
        self._recovery = recovery
        self._tasks: dict[int, asyncio.Task[None]] = {}
        group.on_asked = self._begin

    def close(self) -> None:
        """Replace nothing any more."""
        self._group.on_asked = None
        for task in self._tasks.values():
            task.cancel()

    def _begin(self, member: Member) -> None:
        running = self._tasks.get(member.index)
        if running is None or running.done():
            self._tasks[member.index] = asyncio.create_task(self._replace(member))

    async def _replace(self, member: Member) -> None:
        await asyncio.sleep(SETTLE_S)
        leaving = self._relief.relieve(member.index)
        if leaving is None:
            logger.warning(
                "Engine %d was asked to end (SIGTERM) and goes on, since no other one takes requests now; ask again when one "
                "does, or end the server.",
                member.index,
            )
            return
        logger.warning("Engine %d was asked to end (SIGTERM); its requests go on in others.", member.index)
        has_ended = False
        try:
            await asyncio.wait({leaving})
            # It may have died, or an operator has ended it: the next one then comes by other ways.
            if has_ended := member.state == "drained":
                await self._group.end(member)
        finally:
            member.is_leaving = False
        try:
            if has_ended:
                await self._recovery.start(member)
            elif member.state == "draining":
                logger.warning("Engine %d goes on, since no other one takes requests any more.", member.index)
                self._group.open(member)
                await self._recovery.reopened()
        except EngineDeadError as error:
            logger.error("The engine that follows engine %d did not come up: %s", member.index, error)
        except Exception as defect:
            logger.error("Engine %d could not be replaced.", member.index, exc_info=defect)
