"""The client of several engines, which looks like the client of one.

Owns: `GroupClient`: which engine has which request, and the messages of all engines. Never does: restart an engine, or resume
a request (the recovery does). Called by: `AsyncEngine`, and `LLM` with several engines.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from core.api.errors import EngineDeadError, EngineStalledError, RequestError
from core.api.messages import EngineOutput, EngineOutputs, EngineReady, EngineRequest
from core.api.step_plan import SequenceKey
from core_frontend.group.calls import GroupCalls
from core_frontend.group.member import ENDED, EngineState, Member, state_of
from core_frontend.group.prefix_keys import prefix_keys
from core_frontend.group.router import Router
from core_frontend.group.stats_log import GroupStatsLog
from core_frontend.group.totals import GroupTotals
from core_frontend.group.work import Work
from core_supervision.link.zmq_client import ZmqClient

logger = logging.getLogger(__name__)


class GroupClient:
    """The engines of one group, used from one event loop.

    members:    by index.
    totals:     the statistics of all engines.
    stats_log:  receives each message of an engine.
    on_taken:   called with each member's outputs, once they have been passed on.
    on_asked:   called with a member to whose process, of this command, somebody has sent SIGTERM.
    calls:      those that reach all engines or none.
    fallen:     members whose engine has died, for the recovery, the first one first.
    dead_error: always None: the recovery decides when there is no engine any more.

    num_routers: processes that send requests to these engines, this one included.
    """

    dead_error: EngineDeadError | None = None

    def __init__(self, members: Sequence[Member], num_routers: int = 1) -> None:
        self.members = members
        self.totals = GroupTotals(members)
        self.fallen: deque[Member] = deque()
        self.stats_log: GroupStatsLog | None = None
        self.on_taken: Callable[[Member, Sequence[EngineOutput]], None] | None = None
        self.on_asked: Callable[[Member], None] | None = None
        self._router = Router(len(members), num_routers)
        self._work = Work(len(members))
        self.calls = GroupCalls(members, self._live_members)
        self._on_outputs: Callable[[EngineOutputs], None] | None = None
        self._on_death: Callable[[EngineDeadError], None] | None = None

    def listen(self, on_outputs: Callable[[EngineOutputs], None], on_death: Callable[[EngineDeadError], None]) -> None:
        """Start receiving. on_death: called with the cause of each engine's death, whose member is in `fallen`."""
        self._on_outputs, self._on_death = on_outputs, on_death
        for member in self.members:
            if member.connected is None:
                self._router.shut(member.index)
            else:
                self.await_next(member, member.client)

    @property
    def clients(self) -> list[ZmqClient]:
        """The clients of all engines, dead ones too, but none of an engine that was ended."""
        return [member.client for member in self.members if member.connected is not None and member.state != "ended"]

    @property
    def ready(self) -> EngineReady:
        """The greeting of one of the engines, with the blocks of all."""
        greetings = [client.ready for client in self.clients]
        return msgspec.structs.replace(greetings[0], num_blocks=sum(ready.num_blocks for ready in greetings))

    @property
    def pid(self) -> int:
        """Process id of the first engine that runs. Raises ValueError where another process has started them."""
        return self._live_members()[0].client.pid

    @property
    def serves(self) -> bool:
        """Whether an engine takes requests."""
        return any(self._router.is_open)

    @property
    def silence_s(self) -> float:
        """Seconds for which no engine has said anything although something waits for each. Drained ones owe nothing."""
        alive = [member for member in self.members if member.is_alive]
        asked = [member for member in alive if not member.is_out] or alive
        return min((member.client.silence_s for member in asked), default=0.0)

    def name_of(self, handle: int) -> str:
        """Return the id of a request of the engine that died last, as a client of one engine does."""
        return self.fallen[-1].client.name_of(handle)

    @property
    def engines(self) -> list[EngineState]:
        """The state of each engine."""
        return [state_of(member) for member in self.members]

    def has(self, request_id: str) -> bool:
        """Whether an engine has this request."""
        return request_id in self._work.tasks

    def place_of(self, request_id: str) -> int | None:
        """Return the index of the engine that has a request; None when none has."""
        task = self._work.tasks.get(request_id)
        return None if task is None else task.engine

    def requests_at(self, member: Member) -> list[str]:
        """Return the ids of the requests that a member has."""
        return self._work.at(member.index)

    async def add(
        self, requests: Sequence[EngineRequest], member: Member | None = None, *, num_cached: int = 0
    ) -> None:
        """Send the choices of one request to an engine.

        member: None: the best one. num_cached: tokens that it will not compute.

        Raises EngineDeadError when no engine takes requests, or this one has died; RequestError for values that no message
        can hold.
        """
        request_id = requests[0].request_id
        if member is None:
            member, num_cached = self.best(requests[0])
        task = self._work.begin(requests, member.index, num_cached)
        try:
            await member.client.add(requests)
        except (RequestError, EngineDeadError):
            # Unless the recovery of that engine has sent it to another one meanwhile. A request whose caller has gone stays, so
            # that the abort that follows finds it.
            if self._work.tasks.get(request_id) is task:
                self._work.forget(request_id)
            raise

    def abort(self, request_ids: Sequence[str]) -> None:
        """Abort all choices of these requests, as a client of one engine does."""
        for request_id in request_ids:
            task = self._work.tasks.get(request_id)
            if task is not None:
                self.members[task.engine].client.abort([request_id])
                self._work.forget(request_id)

    def abort_choices(self, keys: Sequence[SequenceKey]) -> None:
        """Abort single choices, as `abort` does for requests."""
        for request_id, choice in keys:
            task = self._work.tasks.get(request_id)
            if task is not None:
                self.members[task.engine].client.abort_choices([(request_id, choice)])
                self._work.end_choice(request_id)

    def drop(self, is_over: Callable[[str], bool]) -> None:
        """Abort the requests of which this is true."""
        self.abort([name for name in self._work.tasks if is_over(name)])

    async def call(self, method: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """Call a utility of all engines, or of none; returns one result for all.

        Raises UtilityError when the first engine refuses it, EngineStalledError while an engine is being restarted,
        EngineDeadError when the first engine dies.
        """
        return await self.calls.call(method, arguments or {})

    def ping(self) -> asyncio.Future[Any]:
        """Ping all engines; returns the future of one that was not silent for longest. Raises EngineDeadError."""
        alive = self._live_members()
        pings = [(member.client.silence_s, member.index, member.client.ping()) for member in alive]
        return min(pings, key=lambda ping: ping[:2])[2]

    async def close(self) -> None:
        """Disconnect from all engines; the owner's `close` ends them. May be called twice."""
        await asyncio.gather(*(client.close() for client in self.clients))

    def abandon(self) -> None:
        """Kill the engines that this client has started, without waiting."""
        for client in self.clients:
            client.abandon()

    def kill(self) -> None:
        """Kill the engines that this client has started; `close` then has nothing to wait for."""
        for client in self.clients:
            client.kill()

    def adopt(self, member: Member, client: ZmqClient) -> None:
        """Let a member have its next engine, which takes no requests by itself before `open`."""
        self.await_next(member, client)
        self.admit(member, client)

    def await_next(self, member: Member, client: ZmqClient) -> None:
        """Hear an engine that a member is to have: it can be called, and its death is none of the group's before `admit`."""
        client.on_asked = partial(self._asked, member)
        client.listen(partial(self._take, member), partial(self._lose, member, client))

    def admit(self, member: Member, client: ZmqClient) -> None:
        """Let a member have an engine that is heard already. See `adopt`."""
        member.connected, member.state, member.error = client, "trying", None

    def open(self, member: Member) -> None:
        """Let a member take requests, unless an operator has taken it out."""
        if member.is_out:
            member.state = "draining" if self.requests_at(member) else "drained"
            return
        member.state = "running"
        self._router.open(member.index)

    def is_relieved(self, member: Member) -> bool:
        """Whether another member takes requests."""
        return any(self._router.is_open[each.index] for each in self.members if each is not member)

    def take_out(self, member: Member) -> None:
        """Send a member no further request: it is drained, or leaves."""
        self._router.shut(member.index)
        if member.state == "running":
            member.state = "draining" if self.requests_at(member) else "drained"

    async def end(self, member: Member) -> None:
        """End the process of a drained member, whose memory is then free."""
        member.state = "ended"
        member.totals.end_engine(0)
        await member.client.close()

    def undrain(self, member: Member) -> None:
        """Let a member take requests again, at once or once it has an engine; one that was ended has to be started.

        One that is about to end gets none: its next engine does.
        """
        member.is_drained = False
        if member.state in ("draining", "drained"):
            self.open(member)

    def undrain_last(self) -> list[Member]:
        """Let drained members take requests again where no other one will; returns them. Where none has a process, only one."""
        if any(member.state != "gone" and not member.is_drained for member in self.members):
            return []
        left = [member for member in self.members if member.state != "gone"]
        drained = [member for member in left if member.state != "ended"] or left[:1]
        for member in drained:
            logger.warning("Engine %d takes requests again: no other one is left.", member.index)
            self.undrain(member)
        return drained

    def leave_out(self, member: Member, error: EngineDeadError) -> None:
        """Go on without a member, which will have no further engine."""
        member.state, member.error = "gone", error

    def _take(self, member: Member, message: EngineOutputs) -> None:
        member.totals.take(message.stats)
        self._work.done(message.outputs, member.index)
        if self.stats_log is not None:
            self.stats_log.record(message, member.index)
        if self._on_outputs is not None:
            self._on_outputs(message)
        if self.on_taken is not None:
            self.on_taken(member, message.outputs)

    def _asked(self, member: Member) -> None:
        if member.state == "ended":  # the server grows by it, and it has no requests that could go on elsewhere
            return
        if self.on_asked is not None:
            self.on_asked(member)

    def _lose(self, member: Member, client: ZmqClient, error: EngineDeadError) -> None:
        if member.connected is not client:
            return
        self._router.shut(member.index)
        lost = self._work.at(member.index)
        for request_id in lost:
            self._work.forget(request_id)
        if member.is_leaving and not lost:  # the end that its command has announced, which is no death
            error = EngineDeadError(str(error), cause=ENDED, suspects=())
        member.state, member.error, member.is_leaving = "restarting", error, False
        member.totals.end_engine(0)
        self.fallen.append(member)
        if self._on_death is not None:
            self._on_death(error)

    def best(self, request: EngineRequest) -> tuple[Member, int]:
        """Return the member for a request, and the number of its tokens that are expected to be cached there.

        Raises EngineDeadError when no engine takes requests.
        """
        if not self.serves:
            raise EngineDeadError("No engine of the group takes requests now.")
        keys, lengths, head = prefix_keys(request)
        self._note_waits()
        saved = [length / self._work.rate for length in lengths]
        index, cached = self._router.choose(keys, saved, head)
        return self.members[index], lengths[cached] if cached >= 0 else 0

    def _note_waits(self) -> None:
        """Tell the router what waits at each engine."""
        router, work = self._router, self._work
        for member in self.members:
            router.own[member.index] = work.seconds(member.index)
            if router.num_routers > 1:
                waiting = member.totals.latest.num_for_room
                router.reported[member.index] = waiting * work.typical_s

    def _live_members(self) -> list[Member]:
        """Return the members whose engine can be called. Raises EngineStalledError when there is none."""
        alive = [member for member in self.members if member.is_alive]
        if not alive:
            raise EngineStalledError("All engines died and are being started again; ask again in a few seconds.")
        return alive
