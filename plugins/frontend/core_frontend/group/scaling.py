"""The number of engines of a group, which changes while requests run.

Owns: `GroupScaling`: which places get an engine and which lose theirs, all or nothing. Never does: move a request
(`core_frontend.group.moves` does), or start a process by itself. Called by: the moves of a group whose engines this process has
started; an API process, for its part of an order.

A group has a place for each engine that it may ever have, so the homes of prefixes at engines that stay are the same before and
after. An engine takes requests once all that were to come have been brought to the state of the others; until then nothing has
changed for anybody, and whatever fails leaves the old ones.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Final

from core.api.errors import CoreError, EngineDeadError, RequestError, UtilityError
from core_frontend.group.client import GroupClient
from core_frontend.group.joining import check_adapters, check_same
from core_frontend.group.member import Member
from core_frontend.group.orders import (
    Drained,
    Moved,
    Scaled,
    check_size,
    failed_growth,
    failed_shrinking,
    is_being_scaled,
    scaled,
    too_few_places,
)
from core_frontend.group.recovery import GroupRecovery
from core_supervision.link.zmq_client import ZmqClient
from core_supervision.revival import OwnedEngineSource

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.05
TakeOut = Callable[..., Coroutine[None, None, Drained]]
"""`GroupMoves.take_out`."""


class GroupScaling:
    """The changes of size of one group, one at a time. take_out: drains an engine, and ends its process if asked to."""

    def __init__(self, group: GroupClient, recovery: GroupRecovery, take_out: TakeOut) -> None:
        self._group = group
        self._recovery = recovery
        self._take_out = take_out
        self._running: asyncio.Task[Scaled] | None = None

    @property
    def is_running(self) -> bool:
        """Whether the number of engines is being changed."""
        return self._running is not None and not self._running.done()

    async def scale(self, size: int, drain_s: float) -> Scaled:
        """Have as many engines. See `Orders.scale`. A caller that goes away changes nothing: the change goes on.

        Raises RequestError: 400 for a size that cannot be, 409 while another one is being changed, 503 where an engine did not
        come up, or could not leave.
        """
        if self.is_running:
            raise is_being_scaled(f"a change to {size} engines")
        check_size(size, len(self._group.members))
        self._running = asyncio.create_task(self._scale(size, drain_s))
        self._running.add_done_callback(_seen)
        await asyncio.wait({self._running})
        if self._running.cancelled():
            raise RequestError("The server ends, so the number of engines stays.", status=503, code="not_scaled")
        return self._running.result()

    async def empty(self, index: int, patience_s: float, *, ends: bool = False, leaving: Sequence[int] = ()) -> Drained:
        """Send an engine no further request, wait for the end of those that it has, and have the rest go on in others.

        patience_s: for the end of those that it has. ends: as in `GroupMoves.take_out`. leaving: places that are
            emptied at the same time, so that none of them gets what leaves another one.
        """
        member = self._group.members[index]
        for each in (member, *(self._group.members[place] for place in leaving)):
            each.is_drained = True
            self._group.take_out(each)
        end = time.monotonic() + patience_s
        while self._group.requests_at(member) and member.is_out and time.monotonic() < end:
            await asyncio.sleep(LOOK_S)
        return await self._take_out(index, ends=ends)

    async def close(self) -> None:
        """Change nothing any more; engines that have not joined yet are ended."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _scale(self, size: int, drain_s: float) -> Scaled:
        members = self._group.members
        present = [member for member in members if member.state not in ("ended", "gone")]
        if size > len(present):
            absent = [member for member in members if member.state == "ended"]
            if len(present) + len(absent) < size:
                raise RequestError(too_few_places(size, len(present) + len(absent)), status=409, code="too_few_places")
            await self._grow(absent[: size - len(present)], len(present))
            return scaled(size, Moved(moved=0, computed=0, stayed=0))
        return scaled(size, await self._shrink(present, len(present) - size, drain_s))

    async def _grow(self, members: Sequence[Member], size: int) -> None:
        """Let members without an engine have one. size: engines that there are. Raises RequestError; then none has one."""
        logger.info("The server grows from %d to %d engines.", size, size + len(members))
        for member in members:
            member.is_starting = True
        starts = [asyncio.create_task(self._start(member)) for member in members]
        try:
            clients = await _all_or_none(starts)
            await self._join(members, clients)
        except (CoreError, OSError) as error:
            if isinstance(error, RequestError):
                raise
            logger.error("The server does not grow: %s", error)
            raise RequestError(failed_growth(size, [str(error)]), status=503, code="not_scaled") from error
        finally:
            for member in members:
                member.is_starting = False
        await self._recovery.reopened()

    async def _start(self, member: Member) -> ZmqClient:
        """Start an engine that belongs to nobody yet. Raises what a start raises, with nothing left of it."""
        assert isinstance(member.source, OwnedEngineSource), "this process starts the engines"
        client = await member.source.another()
        try:
            check_same(client.ready, self._group.ready)
        except EngineDeadError:
            await client.close()
            raise
        self._group.await_next(member, client)
        return client

    async def _join(self, members: Sequence[Member], clients: Sequence[ZmqClient]) -> None:
        """Bring new engines to the state of the others, and let them take requests: all, or none."""
        try:
            async with self._group.calls.turn:  # a call that changes engines finds them all, or none of them
                for member, client in zip(members, clients, strict=True):
                    await self._recovery.level(member, client)
                    await self._check_adapters(member, client)
                dead = next((client.dead_error for client in clients if client.dead_error is not None), None)
                if dead is not None:
                    raise dead
                for member, client in zip(members, clients, strict=True):
                    self._group.admit(member, client)
                    member.is_drained = False
                    self._group.open(member)
        except BaseException:
            await _end(clients)
            raise

    async def _check_adapters(self, member: Member, client: ZmqClient) -> None:
        assert isinstance(member.source, OwnedEngineSource), "this process starts the engines"
        other = next((each for each in self._group.members if each.state == "running" and each.is_alive), None)
        if member.source.has_adapters and other is not None:
            try:
                await check_adapters(client, other.client)
            except UtilityError as error:
                raise EngineDeadError(f"The adapters cannot be compared: {error}") from error

    async def _shrink(self, present: Sequence[Member], count: int, drain_s: float) -> Moved:
        """End engines: first those that are drained already, then those of the highest numbers."""
        order = sorted(present, key=lambda member: (not member.is_drained, -member.index))
        leaving = order[:count]
        foreign = next((each for each in leaving if each.is_alive and not each.client.is_owner), None)
        if foreign is not None:
            raise RequestError(
                f"Engine {foreign.index} is a process of another command, which alone can end it; end that command.",
                status=409,
                code="not_the_owner",
            )
        if leaving:
            logger.info("The server shrinks from %d to %d engines.", len(present), len(present) - count)
        places = [member.index for member in leaving]
        moved = await asyncio.gather(*(self._leave(member, drain_s, places) for member in leaving))
        staying = [member for member in leaving if member.state not in ("ended", "gone")]
        if staying:
            for member in staying:
                self._group.undrain(member)
            await self._recovery.reopened()
            indexes = [member.index for member in staying]
            raise RequestError(failed_shrinking(indexes), status=503, code="not_scaled")
        return Moved(moved=sum(each.moved for each in moved), computed=sum(each.computed for each in moved), stayed=0)

    async def _leave(self, member: Member, drain_s: float, places: Sequence[int]) -> Moved:
        """End one engine, however often it dies meanwhile; what it cannot leave to others keeps it. places: that leave."""
        moved = Moved(moved=0, computed=0, stayed=0)
        member.is_drained = True
        while member.state not in ("ended", "gone") and member.is_drained:  # the second: no other one is left
            found = await self.empty(member.index, drain_s, ends=True, leaving=places)
            drain_s, places = 0.0, ()
            moved.moved += found.moved
            moved.computed += found.computed
            if member.state == "draining":
                break
            if member.state not in ("ended", "gone"):  # it has died, and the next one is about to come
                await asyncio.sleep(LOOK_S)
        if member.state == "ended" and isinstance(member.source, OwnedEngineSource):
            await member.source.rest()
        return moved


def _seen(task: asyncio.Task[Scaled]) -> None:
    """Read the outcome of a change whose caller may have gone away."""
    if not task.cancelled() and task.exception() is not None:
        logger.info("The number of engines stays: %s", task.exception())


async def _all_or_none(starts: Sequence[asyncio.Task[ZmqClient]]) -> list[ZmqClient]:
    """Return the engines that start. Raises the first error; the others are ended then, those that still start, too."""
    try:
        return list(await asyncio.gather(*starts))
    except BaseException:
        for start in starts:
            start.cancel()
        found = await asyncio.gather(*starts, return_exceptions=True)
        await _end([each for each in found if isinstance(each, ZmqClient)])
        raise


async def _end(clients: Sequence[ZmqClient]) -> None:
    await asyncio.gather(*(client.close() for client in clients))
