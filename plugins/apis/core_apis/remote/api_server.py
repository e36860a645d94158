"""The start of an API server that engines of other commands join: `core serve MODEL --data-parallel-size-local N`.

Owns: the connection of the HTTP server to the engines that other commands run, and the group with engines of its own command.
Never does: start or end an engine of another command. Called by: the launcher.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from core.api.config import EngineConfig
from core.api.errors import EngineDeadError
from core_apis.processes.engine_events import SharedEngineSource
from core_apis.remote.agreement import adopted, explained_for_api_server, hello
from core_apis.remote.api_server_link import ApiServerLink
from core_apis.server.lifetime import LinkError
from core_apis.server.service import ready_application
from core_config.explained import explained
from core_frontend.async_engine import AsyncEngine
from core_frontend.group.client import GroupClient
from core_frontend.group.source import GroupSource
from core_frontend.startup import start_engine_and_tokenizer
from core_supervision.revival import EngineSource

if TYPE_CHECKING:
    from core_config.resolve import Resolution
    from core_supervision.child import EngineProcess
    from core_supervision.helpers.lane import Spawned

logger = logging.getLogger(__name__)


class LinkedEngineSource(SharedEngineSource):
    """The source of the one engine of another command. Closing it closes the link; its engine is not ended."""

    def __init__(self, link: ApiServerLink) -> None:
        (seat,) = link.seats.values()
        super().__init__(seat.news, seat.connection, lambda _: None, seat.explain)
        self._link = link

    async def close(self) -> None:
        """Close the link."""
        await self._link.close()


class LinkedGroupSource(GroupSource):
    """The sources of a group with engines of other commands. own: of the engines of this command."""

    def __init__(self, own: Sequence[EngineSource], link: ApiServerLink) -> None:
        super().__init__([*own, *(seat.source() for seat in link.seats.values())])
        self._link = link

    async def close(self) -> None:
        """Close the link, and release what is kept for further engines of this command."""
        await super().close()
        await self._link.close()


async def start_api_server(
    resolution: Resolution, process: EngineProcess
) -> tuple[AsyncEngine, Spawned | None, dict[str, Any]]:
    """Return the engine, once all engines are up, the helper process, and the configuration as plain values.

    process: already spawned, for the first engine of this command; discarded if it starts none.

    Raises UserError if the address cannot be listened at, LinkError if an engine of another command does not come in time, and
    what the start of an own engine raises.
    """
    settings = resolution.server.remote
    assert settings is not None
    if not settings.num_own:
        process.discard()
    link = ApiServerLink(resolution)
    if settings.num_own:
        link.agreement.begin_with(hello(resolution))
    source = _source(resolution, link, process)
    starting: asyncio.Future[Any] = asyncio.ensure_future(start_engine_and_tokenizer(resolution, source))
    try:
        helper = await ready_application()
        client, tokenizer = await starting
    except BaseException as error:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await source.close()
        if isinstance(error, EngineDeadError) and link.is_given_up:
            raise LinkError(str(error)) from error
        raise
    link.is_started = True
    if isinstance(client, GroupClient):
        link.own_serve = lambda: any(member.state != "gone" for member in client.members[: settings.num_own])
    config, told = _configuration(resolution, link)
    engine = AsyncEngine(config, tokenizer, client, source)
    if engine.moves is not None:
        for rank, seat in link.seats.items():
            seat.on_leaving = partial(engine.moves.relieve, rank)
    return engine, helper, told


def _source(
    resolution: Resolution, link: ApiServerLink, process: EngineProcess
) -> LinkedEngineSource | LinkedGroupSource:
    if len(link.seats) == 1 and 0 in link.seats:
        return LinkedEngineSource(link)
    settings = resolution.server.remote
    assert settings is not None
    own = GroupSource.own_sources(resolution.engine, None, process) if settings.num_own else []
    return LinkedGroupSource(own, link)


def _configuration(resolution: Resolution, link: ApiServerLink) -> tuple[EngineConfig, dict[str, Any]]:
    """Return the configuration of the group, and as plain values."""
    settings = resolution.server.remote
    assert settings is not None and link.hello is not None
    if settings.num_own:
        config, told = resolution.engine, explained(resolution)
    else:
        config = adopted(resolution.engine, link.hello.engine)
        told = explained_for_api_server(resolution, link.hello)
    if config.weight_transfer is not None and not resolution.server.keys:
        logger.warning(
            "The engine has --weight-transfer-config and this API server requires no key, so any client that reaches it "
            "may replace the weights; give --api-key or --admin-api-key."
        )
    return msgspec.structs.replace(config, data_parallel_size=settings.group_size, data_parallel_rank=0), told
