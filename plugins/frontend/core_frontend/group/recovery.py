"""The recovery of one engine of a group, while the others go on.

Owns: `GroupRecovery`: the requests of an engine that died, which others get at once; the next engine at its place, and
bringing that to the state of the others. Never does: choose an engine for a request. Called by: `AsyncEngine`, and `LLM`
with several engines.

A request that engines may die of waits for the next engine, and runs there without others, as with one engine: so it ends two
engines at most before it is alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any, Protocol

from core.api.errors import EngineDeadError, RequestError, UtilityError
from core.api.messages import EngineReady
from core_frontend.api.explanation import MoveUse
from core_frontend.denylist import Denylist
from core_frontend.group.client import GroupClient
from core_frontend.group.member import ENDED, Member
from core_frontend.output_processor import RequestState
from core_frontend.recovery import SAME, DeadClient, Patient, Recovery, Resumable, num_missing
from core_supervision.link.zmq_client import ZmqClient
from core_supervision.restart_log import RestartLog

logger = logging.getLogger(__name__)


class Closing(Protocol):
    """What keeps something for further engines."""

    async def close(self) -> None:
        """Release it."""
        ...


class GroupRecovery(Recovery):
    """The recovery of the engines of one `AsyncEngine`. group: its client. source: of all engines."""

    def __init__(
        self,
        group: GroupClient,
        source: Closing,
        patient: Patient,
        live: Resumable,
        log: RestartLog,
        killers: Denylist,
        num_drafts: int = 0,
    ) -> None:
        super().__init__(group.members[0].source, patient, live, log, killers, num_drafts)
        self.group = group
        self._all_sources = source

    def begin(self, dead: DeadClient, error: EngineDeadError) -> None:
        """Begin the recovery of the engine that died last, of `error`. dead: the group."""
        member = self.group.fallen.popleft()
        client = member.client
        if error.cause != ENDED:  # its command has ended it on request, and it has left its requests to others
            self._log.died(error.cause, str(error), pauses=not self.group.serves)
        logger.error("Engine %d: %s", member.index, error)
        num_explained = self._judge(client, error)
        self.group.drop(lambda name: self._requests.find(name) is None)
        earlier = self._tasks.pop(member.index, None)
        if earlier is not None:
            earlier.cancel()
        self._tasks[member.index] = asyncio.create_task(self._replace(member, client, error, num_explained))

    async def close(self) -> None:
        """End all recoveries, without further engines."""
        self._stop()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._all_sources.close()

    async def _replace(self, member: Member, dead: ZmqClient, error: EngineDeadError, num_explained: int) -> None:
        """Give a member its next engine, or leave it out."""
        try:
            await self._spread()
            await dead.close()
            client = await self._next_at(member, dead.ready, error, num_explained)
            self.group.adopt(member, client)
            await self.level(member, client)
            if error.cause != ENDED:
                self._log.restarted(error.cause)
            await self._try_suspects(member)
            if client.dead_error is None:
                self.group.open(member)
                if self.group.serves:  # not where an operator has taken it out, and no other one runs
                    self._end_pause()
                await self._spread()
        except EngineDeadError as last:
            await self._leave_out(member, last)
        except Exception as defect:
            logger.error("Engine %d could not be replaced.", member.index, exc_info=defect)
            sentence = f"{error}\nIt could not be replaced ({type(defect).__name__}: {defect})."
            await self._leave_out(member, EngineDeadError(sentence, cause=error.cause))

    async def _leave_out(self, member: Member, last: EngineDeadError) -> None:
        if member.client.dead_error is None and member.state == "trying":
            member.client.kill()
        self.group.leave_out(member, last)
        if all(each.state == "gone" for each in self.group.members):
            self._patient.give_up(last)
            return
        logger.error("Engine %d stays away: %s\nThe others go on.", member.index, last)
        for each in self.group.undrain_last():
            if each.state == "ended":
                with contextlib.suppress(EngineDeadError):  # it has been left out, too
                    await self.start(each)
        await self.reopened()

    async def start(self, member: Member) -> None:
        """Start an engine where an operator has ended one, and let it take requests.

        Raises EngineDeadError when it does not come up; the member is then left out.
        """
        member.state = "restarting"  # no call changes the group meanwhile, and no other order starts one
        starting = self._tasks[member.index] = asyncio.create_task(self._start(member))
        await asyncio.wait({starting})
        if starting.cancelled():
            raise EngineDeadError("It died before it took requests, and is started again.", cause="start_failed")
        starting.result()

    async def _start(self, member: Member) -> None:
        ended = EngineDeadError("An operator has ended it.", cause=ENDED)
        # A process that began while there was none compares it with the others.
        before = self.group.ready if member.connected is None else member.client.ready
        try:
            # As if a request had caused its end: it does not count among the deaths.
            client = await self._next_at(member, before, ended, 1)
            self.group.adopt(member, client)
            await self.level(member, client)
        except EngineDeadError as last:
            await self._leave_out(member, last)
            raise
        self.group.open(member)
        await self.reopened()

    async def reopened(self) -> None:
        """Send requests that wait for an engine to one that takes requests again, if there is one."""
        if not self.group.serves:
            return
        if self._log.paused_since is not None:
            self._end_pause()
        await self._spread()

    async def _spread(self) -> None:
        """Send the live requests that no engine has, except those that have to run alone."""
        if not self.group.serves:
            return
        alone = self._suspects.searched
        waiting = [state for state in self._requests if not self.group.has(state.request_id)]
        waiting = [state for state in waiting if state.request_id not in alone]
        waiting.sort(key=num_missing)
        if waiting:
            logger.warning("%d requests of an engine that died go on in others.", len(waiting))
        for state in waiting:
            await self.give(state)

    async def _try_suspects(self, member: Member) -> None:
        """Run the requests that engines may die of, half of them at a time, in an engine that has no others."""
        while names := self._suspects.next_trial():
            logger.warning("Engine %d may have died of one of %d requests; they run alone.", member.index, len(names))
            for name in names:
                state = self._requests.find(name)
                if state is not None and not self.group.has(name):
                    await self.give(state, member)
            await self._until_safe(names)
            if member.client.dead_error is not None:
                return
            self._suspects.acquit()

    async def give(
        self, state: RequestState, member: Member | None = None, move: MoveUse | None = None, *, num_cached: int = 0
    ) -> None:
        """Send a request that no engine has, with its tokens. Does nothing where one has it, or it has ended.

        member: None: to the best engine. move: why it has left its engine; None: that died. num_cached: see `GroupClient.add`.
        """
        if self._requests.find(state.request_id) is not state or self.group.has(state.request_id):
            return
        self._given[state.request_id] = state.num_given()
        try:
            await self.group.add(state.resumed(move), member, num_cached=num_cached)
        except EngineDeadError:
            return  # the recovery of that engine has begun
        except RequestError as error:
            self._streams.fail(state.request_id, error)

    async def _next_at(
        self, member: Member, before: EngineReady, error: EngineDeadError, num_explained: int
    ) -> ZmqClient:
        """Return the next engine at a place. before: what the one before said. Raises EngineDeadError where there is none."""
        client = await member.source.next(error, num_explained)
        for name in SAME:
            was, now = getattr(before, name), getattr(client.ready, name)
            if was != now:
                await client.close()
                raise EngineDeadError(
                    f"Its next engine has another {name} ({now!r}, it was {was!r}).", cause=error.cause
                )
        return client

    async def level(self, member: Member, client: ZmqClient) -> None:
        """Bring the next engine of a member to the state of the others. Raises EngineDeadError when that fails."""
        try:
            while member.missed:
                method, arguments = member.missed[0]
                await repeat(client, method, arguments)
                del member.missed[0]
            other = next((each for each in self.group.members if each is not member and each.state == "running"), None)
            if other is not None and other.is_alive:
                await follow(client, await other.client.call("lifecycle"))
        except UtilityError as error:
            raise EngineDeadError(f"Its next engine does not get into the state of the others: {error}") from error

    def _end_pause(self) -> None:
        """Note that requests are computed again."""
        if self._log.paused_since is not None:
            seconds = self._log.recovered()
            logger.warning("An engine runs again after %.2f s.", seconds)
        elif self._log.on_recovered is not None:
            self._log.on_recovered(0.0)


async def repeat(client: ZmqClient, method: str, arguments: Any) -> None:
    """Make a call that an engine has missed. One that has been executed before the death may be refused: the state tells.

    Raises EngineDeadError when the engine dies of it.
    """
    try:
        answer = await client.call(method, arguments)
        if method == "load_adapter":
            while await client.call("loaded_adapter", {"ticket": answer}) is None:
                await asyncio.sleep(0.01)
    except UtilityError as error:
        logger.warning("%s is not repeated: %s", method, error)


async def follow(client: ZmqClient, wanted: dict[str, Any]) -> None:
    """Let an engine be paused or asleep as another one is. Raises EngineDeadError for other weights."""
    state = await client.call("lifecycle")
    if state["is_sleeping"] and not wanted["is_sleeping"]:
        await client.call("wake_up")
    elif wanted["is_sleeping"] and not state["is_sleeping"]:
        await client.call("sleep", {"level": wanted["sleep_level"], "mode": "keep"})
    if state["is_paused"] and not wanted["is_paused"]:
        await client.call("resume")
    elif wanted["is_paused"] and not state["is_paused"]:
        await client.call("pause", {"mode": "keep", "clear_cache": False})
    if state["weight_version"] != wanted["weight_version"]:
        versions = f"{state['weight_version']!r}, the others have {wanted['weight_version']!r}"
        raise EngineDeadError(f"Its next engine has weights of version {versions}.")
