"""The start of an API server: `core serve MODEL --data-parallel-size-local 0`.

Owns: the connection of the HTTP server to an engine that another command runs. Never does: start or end that engine.
Called by: the launcher.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from core.api.errors import EngineDeadError
from core_apis.processes.engine_events import EngineEvents, SharedEngineSource
from core_apis.remote.agreement import adopted, explained_for_api_server
from core_apis.remote.api_server_link import ApiServerLink
from core_apis.server.lifetime import LinkError
from core_apis.server.service import ready_application
from core_frontend.async_engine import AsyncEngine
from core_frontend.startup import start_engine_and_tokenizer
from core_supervision.link.zmq_client import ZmqClient

if TYPE_CHECKING:
    from core_config.resolve import Resolution
    from core_supervision.helpers.lane import Spawned

logger = logging.getLogger(__name__)


class RemoteEngineSource(SharedEngineSource):
    """A source of connections to the current engine of the link."""

    def __init__(self, link: ApiServerLink, news: EngineEvents) -> None:
        super().__init__(news, link.connection, _ignore, link.explain)
        self._link = link

    async def close(self) -> None:
        """Close the link; its engine is not ended."""
        await self._link.close()


async def start_api_server(resolution: Resolution) -> tuple[AsyncEngine, list[Spawned], dict[str, Any]]:
    """Return the engine, once one has connected and is up, the helper processes, and the configuration as plain values.

    Raises UserError if the address cannot be listened at, LinkError if no engine comes in time.
    """
    news = EngineEvents()
    link = ApiServerLink(resolution, news)
    source = RemoteEngineSource(link, news)
    starting = asyncio.ensure_future(start_engine_and_tokenizer(resolution, source))
    try:
        helpers = await ready_application()
        client, tokenizer = await starting
    except BaseException as error:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await source.close()
        if isinstance(error, EngineDeadError):
            raise LinkError(str(error)) from error
        raise
    assert link.hello is not None
    config = adopted(resolution.engine, link.hello.engine)
    if config.weight_transfer is not None and not resolution.server.keys:
        logger.warning(
            "The engine has --weight-transfer-config and this API server requires no key, so any client that reaches it "
            "may replace the weights; give --api-key or --admin-api-key."
        )
    engine = AsyncEngine(config, tokenizer, client, source)
    return engine, helpers, explained_for_api_server(resolution, link.hello)


def _ignore(client: ZmqClient) -> None:
    """Do nothing: an API server does not report which client is in use."""
