"""The start of the engines of a group.

Owns: `GroupSource`. Never does: replace an engine (its member's own source does). Called by: the start of an engine, when the
configuration wants several; API processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from core.api.config import EngineConfig
from core.api.errors import EngineDeadError
from core_frontend.group.client import GroupClient
from core_frontend.group.member import ENDED, Member, MemberState
from core_frontend.group.member_config import member_config
from core_frontend.recovery import SAME
from core_supervision.child import EngineProcess
from core_supervision.link.zmq_client import ZmqClient
from core_supervision.revival import EngineSource, OwnedEngineSource


class GroupSource:
    """The sources of all engines of a group, in order.

    num_routers: processes that send requests to these engines.
    leaves_out:  whether an engine that is gone for good is left out.
    num_started: engines that run at the start, the first ones; the others are started when the server grows. 0: all.
    """

    def __init__(
        self, sources: Sequence[EngineSource], num_routers: int = 1, *, leaves_out: bool = False, num_started: int = 0
    ) -> None:
        self._sources = sources
        self._leaves_out = leaves_out
        self._num_routers = num_routers
        self._num_started = num_started or len(sources)

    @classmethod
    def owned(cls, config: EngineConfig, executor: str | None, process: EngineProcess | None) -> GroupSource:
        """Return a source that starts engine processes. process: an already spawned one for the first engine."""
        sources = cls.own_sources(config, executor, process)
        return cls(sources, num_started=config.data_parallel_started)

    @staticmethod
    def own_sources(
        config: EngineConfig, executor: str | None, process: EngineProcess | None
    ) -> list[OwnedEngineSource]:
        """Return the sources of the engines that a command starts. process: an already spawned one for the first engine."""
        return [
            OwnedEngineSource(member_config(config, rank), executor=executor, process=process if rank == 0 else None)
            for rank in range(config.data_parallel_size)
        ]

    async def first(self) -> GroupClient:
        """Start all engines at the same time, or connect to them.

        Raises the first error of a start, and EngineDeadError for engines that compute differently; then none is left running.
        Where another process has started them, those that are gone for good or were ended are left out, unless all are.
        """
        starts = [asyncio.create_task(source.first()) for source in self._sources[: self._num_started]]
        try:
            found = await asyncio.gather(*starts, return_exceptions=self._leaves_out)
            clients = [client if isinstance(client, ZmqClient) else None for client in found]
            _check(found, clients)
        except BaseException:
            for start in starts:
                start.cancel()
            for started in await asyncio.gather(*starts, return_exceptions=True):
                if isinstance(started, ZmqClient):
                    await started.close()
            raise
        members = []
        for index, (source, client, came) in enumerate(zip(self._sources, clients, found, strict=False)):
            members.append(Member(index, source, client, _state(came)))
        for index, source in enumerate(self._sources[len(found) :], len(found)):
            members.append(Member(index, source, None, "ended", is_drained=True))
        return GroupClient(members, self._num_routers)

    async def close(self) -> None:
        """Release everything kept for further engines."""
        await asyncio.gather(*(source.close() for source in self._sources))


def _state(came: ZmqClient | BaseException) -> MemberState:
    """Return the state of an engine by what its source has brought."""
    if isinstance(came, ZmqClient):
        return "running"
    return "ended" if isinstance(came, EngineDeadError) and came.cause == ENDED else "gone"


def _check(found: Sequence[ZmqClient | BaseException], clients: Sequence[ZmqClient | None]) -> None:
    """Raise an error that is not the end of an engine, or the end of all; EngineDeadError for engines between which a request
    could not move.
    """
    for error in found:
        if isinstance(error, BaseException) and (not isinstance(error, EngineDeadError) or not any(clients)):
            raise error
    for name in SAME:
        values = {getattr(client.ready, name) for client in clients if client is not None}
        if len(values) > 1:
            raise EngineDeadError(f"The engines of one group have another {name} each: {', '.join(map(repr, values))}.")
