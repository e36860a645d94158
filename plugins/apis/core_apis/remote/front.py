"""The start of a front: `core serve MODEL --data-parallel-size-local 0`.

Owns: an engine for the HTTP server that another command runs. Never does: start or end that engine. Called by: the launcher.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from core.api.errors import EngineDeadError
from core_apis.engine_news import EngineNews, SharedEngineSource
from core_apis.lifetime import LinkError
from core_apis.remote.agreement import adopted, explained_for_front
from core_apis.remote.front_link import FrontLink
from core_apis.service import import_application
from core_frontend.async_engine import AsyncEngine
from core_frontend.startup import start_engine_and_tokenizer
from core_supervision.link.zmq_client import ZmqClient

if TYPE_CHECKING:
    from core_config.resolve import Resolution

logger = logging.getLogger(__name__)


class RemoteEngineSource(SharedEngineSource):
    """Connects to whichever engine comes to the link."""

    def __init__(self, link: FrontLink, news: EngineNews) -> None:
        super().__init__(news, link.connection, _ignore, link.explain)
        self._link = link

    async def close(self) -> None:
        """Close the link."""
        await self._link.close()


async def start_front(resolution: Resolution) -> tuple[AsyncEngine, dict[str, Any]]:
    """The engine, once one has come and is up, and its configuration as plain values.

    Raises UserError where nobody can listen, LinkError when none comes in time.
    """
    news = EngineNews()
    link = FrontLink(resolution, news)
    source = RemoteEngineSource(link, news)
    starting = asyncio.ensure_future(start_engine_and_tokenizer(resolution, source))
    try:
        await import_application()
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
            "The engine has --weight-transfer-config and this front asks nobody for a key, so everybody who reaches it may "
            "replace the weights; give --api-key or --admin-api-key."
        )
    engine = AsyncEngine(config, tokenizer, client, source)
    return engine, explained_for_front(resolution, link.hello)


def _ignore(client: ZmqClient) -> None:
    """Nobody asks which client is in use."""
