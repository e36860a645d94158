"""The engine for requests of other processes: of several API processes, or of a remote API server.

Owns: `SupervisedEngine`: its start, its restart after a death, its end, and the reports about them. Never does: run
requests, or know who sends them. Called by: the supervisor, and the command `core serve --headless`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from core.api.errors import EngineDeadError, UtilityError
from core.api.messages import EngineOutputs
from core.api.stats import SchedulerStats
from core_apis.processes.api_messages import EngineAt, EngineDied, EngineEvent, EngineGone
from core_frontend.group.client import GroupClient
from core_frontend.group.joining import check_adapters, check_same
from core_frontend.group.member import ENDED
from core_frontend.group.recovery import follow, repeat
from core_frontend.group.source import GroupSource
from core_frontend.startup import start_with_fallbacks
from core_supervision.link.zmq_client import ZmqClient
from core_supervision.revival import OwnedEngineSource

if TYPE_CHECKING:
    from core_config.resolve import Resolution
    from core_supervision.child import EngineProcess

logger = logging.getLogger(__name__)


class SupervisedEngine:
    """The engine of a supervisor, one at a time.

    phases: of the first engine's start.
    runs:   set while there is an engine, and once it makes no sense to wait for one any more.

    gone:   that there will be no engine any more, or none until an operator wants one; None while there is one.
    missed: calls that the other engines have executed while an operator had ended this one.

    number: place in the group.
    tell: called with each engine event.
    fail: called when there will be no engine any more.
    asked: called when somebody has sent SIGTERM to the engine's process; None: nobody replaces it.
    """

    def __init__(
        self,
        tell: Callable[[EngineEvent], None],
        fail: Callable[[EngineDeadError], None],
        number: int = 0,
        asked: Callable[[int], None] | None = None,
    ) -> None:
        self.gone: EngineGone | None = None
        self.missed: list[tuple[str, Mapping[str, Any]]] = []
        self._number = number
        self.phases: list[tuple[str, float]] = []
        self.runs = asyncio.Event()
        self._tell = tell
        self._fail = fail
        self._asked = asked
        self._source: OwnedEngineSource | None = None
        self._client: ZmqClient | None = None
        self._prepared: ZmqClient | None = None
        self._others: Sequence[SupervisedEngine] = ()
        self._recovery: asyncio.Task[None] | None = None
        self._leaving = False
        self._latest = SchedulerStats()

    @property
    def num_requests(self) -> int:
        """Return the number of requests that wait or run, after the latest step."""
        return self._latest.num_running + self._latest.num_waiting

    async def is_through(self) -> bool:
        """Whether it has no request, and no page that another engine is still to fetch for one that has left it."""
        client = self._client
        if self.num_requests or client is None:
            return not self.num_requests
        try:
            return not (await client.call("kv_handoffs")).get("leases")
        except (EngineDeadError, UtilityError):  # it has died, or no role in handoffs
            return True

    @property
    def is_ended(self) -> bool:
        """Whether an operator has ended it."""
        return self.gone is not None and self.gone.cause == ENDED

    @property
    def address(self) -> str | None:
        """Return the address that clients connect to; None while there is no engine."""
        return None if self._client is None or not self.runs.is_set() else self._client.address

    def begin(self, source: OwnedEngineSource, client: ZmqClient) -> None:
        """Have the first engine. source: provides the next ones."""
        self._source = source
        self.phases = client.ready.phases
        self._adopt(client)

    def forgive(self, num_deaths: int) -> None:
        """Do not count the latest deaths against the engine: an API process has attributed them to one request."""
        if self._source is not None:
            self._source.forgive(num_deaths)

    def declare_gone(self, epoch: int, client: int) -> None:
        """Declare a client dead, and its requests with it. Client numbers of an earlier engine are ignored.

        epoch: of the engine that assigned the number.
        """
        if self._client is not None and self._client.epoch == epoch:
            self._client.declare_gone(client)

    async def end(self) -> None:
        """End the engine, which nobody uses any more. One that has just died is started again instead."""
        client = self._client
        if client is None or not self.runs.is_set():
            return
        self.runs.clear()
        self._client, self._latest = None, SchedulerStats()
        self.gone = EngineGone("An operator has ended it.", ENDED, self._number)
        self._tell(self.gone)
        await client.close()

    def keep(self, source: OwnedEngineSource) -> None:
        """Have no engine until the server grows by it. source: provides it then."""
        self._source = source
        self.gone = EngineGone("The server was started with fewer engines.", ENDED, self._number)

    async def prepare(self, others: Sequence[SupervisedEngine]) -> None:
        """Start an engine that nobody is told of before `admit`. others: whose state it gets with `level`.

        Raises what a start raises; then there is none.
        """
        assert self._source is not None and self.is_ended, "the server grows by it"
        client = await self._source.another()
        client.listen(self._on_step, self._on_dead)
        self._prepared = client
        self._others = others

    async def level(self) -> None:
        """Bring a prepared engine to the state of the others. Raises EngineDeadError when that fails."""
        client = self._prepared
        assert client is not None, "it is prepared"
        while self.missed:
            await repeat(client, *self.missed[0])
            del self.missed[0]
        try:
            other = next((each for each in self._others if each.address is not None), None)
            if other is not None and other._client is not None:
                check_same(client.ready, other._client.ready)
                await follow(client, await other._client.call("lifecycle"))
                if self._source is not None and self._source.has_adapters:
                    await check_adapters(client, other._client)
        except UtilityError as error:
            raise EngineDeadError(f"It does not get into the state of the others: {error}") from error
        if client.dead_error is not None:
            raise client.dead_error

    def admit(self) -> None:
        """Tell everybody of a prepared engine."""
        client, self._prepared = self._prepared, None
        assert client is not None, "it is prepared"
        self.gone = None
        self._announce(client)
        if client.dead_error is not None:
            self._on_dead(client.dead_error)

    async def withdraw(self) -> None:
        """End a prepared engine, of which nobody has been told."""
        client, self._prepared = self._prepared, None
        if client is not None:
            await client.close()
        await self.rest()

    async def rest(self) -> None:
        """End the standby process of a place without an engine."""
        if self._source is not None:
            await self._source.rest()

    async def start_again(self) -> None:
        """Start an engine where an operator has ended one. Raises EngineDeadError when it does not come up: none will then."""
        assert self._source is not None and self.gone is not None, "it was ended"
        client: ZmqClient | None = None
        try:
            # As if a request had caused its end: it does not count among the deaths.
            client = await self._source.next(EngineDeadError(self.gone.sentence, cause=ENDED), 1)
            client.listen(self._on_step, self._on_dead)
            while self.missed:
                await repeat(client, *self.missed[0])
                del self.missed[0]
            if client.dead_error is not None:
                raise client.dead_error
        except BaseException as error:
            if client is not None:
                await client.close()
            if isinstance(error, EngineDeadError):
                self._give_up(error)
            raise
        self.gone = None
        self._announce(client)

    async def replace(self) -> None:
        """End the engine, whose requests go on elsewhere, and start the next one: its end counts as no death."""
        client, source = self._client, self._source
        if client is None or source is None or not self.runs.is_set():
            return  # it has died meanwhile
        self.runs.clear()
        self._client, self._latest = None, SchedulerStats()
        asked = EngineDeadError("The engine was asked to end (SIGTERM).", cause=ENDED)
        self._tell(EngineDied(str(asked), ENDED, (), self._number))
        self._recovery = asyncio.create_task(self._revive(client, source, asked, 1))
        await asyncio.wait({self._recovery})

    async def get(self, method: str, arguments: Mapping[str, Any]) -> None:
        """Have the engine execute a call that it has missed, once it is started."""
        if self.is_ended:
            self.missed.append((method, arguments))
        elif self._client is not None and self._client.dead_error is None:  # it was started while the call was made
            with contextlib.suppress(EngineDeadError):  # its death is reported
                await repeat(self._client, method, arguments)

    def leave(self) -> None:
        """Stop reporting the engine's death: the supervisor is ending it."""
        self._leaving = True

    async def close(self) -> None:
        """End the engine, and its standby processes."""
        self._leaving = True
        if self._recovery is not None:
            self._recovery.cancel()
            await asyncio.gather(self._recovery, return_exceptions=True)
        if self._source is not None:
            await self._source.close()
        for client in (self._client, self._prepared):
            if client is not None:
                await client.close()

    def kill(self) -> None:
        """Kill the engine process at once, while `close` waits for it or before."""
        for client in (self._client, self._prepared):
            if client is not None:
                client.kill()

    def _adopt(self, client: ZmqClient) -> None:
        client.listen(self._on_step, self._on_dead)
        self._announce(client)

    def _announce(self, client: ZmqClient) -> None:
        self._client = client
        client.for_others = True
        if self._asked is not None:
            client.on_asked = partial(self._asked, self._number)
        self.runs.set()
        self._tell(EngineAt(client.address, self._number))

    def _on_step(self, outputs: EngineOutputs) -> None:
        self._latest = outputs.stats

    def _on_dead(self, error: EngineDeadError) -> None:
        if self._leaving or self._client is None:  # the second: whoever starts it sees its death
            return
        logger.error("%s", error)
        self.runs.clear()
        self._tell(EngineDied(str(error), error.cause, tuple(error.suspects or ()), self._number))
        assert self._source is not None, "it has run"
        self._recovery = asyncio.create_task(self._revive(self._client, self._source, error))

    async def _revive(
        self, dead: ZmqClient, source: OwnedEngineSource, error: EngineDeadError, num_explained: int = 0
    ) -> None:
        """Have the next engine. num_explained: see `EngineSource.next`."""
        try:
            await dead.close()
            client = await source.next(error, num_explained)
        except EngineDeadError as last:
            self._give_up(last)
        except Exception as defect:
            logger.error("The engine could not be replaced.", exc_info=defect)
            sentence = f"{error}\nIt could not be replaced ({type(defect).__name__}: {defect})."
            self._give_up(EngineDeadError(sentence, cause=error.cause))
        else:
            self._adopt(client)

    def _give_up(self, last: EngineDeadError) -> None:
        """Report that there will be no engine any more."""
        self.gone = EngineGone(str(last), last.cause, self._number)
        self._tell(self.gone)
        self._fail(last)


async def start_engines(
    engines: Sequence[SupervisedEngine], resolution: Resolution, process: EngineProcess
) -> Resolution:
    """Start all engines. process: of the first one.

    Return the resolution, which a fallback may have changed. Raises as `start_with_fallbacks`.
    """
    started, source, client, _ = await start_with_fallbacks(resolution, None, process)
    if isinstance(client, GroupClient):
        for engine, member in zip(engines, client.members, strict=True):
            own = cast(OwnedEngineSource, member.source)  # made by `GroupSource.owned`
            if member.connected is None:
                engine.keep(own)
            else:
                engine.begin(own, member.connected)
    elif not isinstance(source, GroupSource):
        engines[0].begin(source, client)
    return started
