"""A new engine process and its tokenizer, made at the same time.

Owns: `start_engine_and_tokenizer`. Never does: decide what follows a failure. Called by: `AsyncEngine.start`.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, Self

from core.api.checkpoint import CheckpointManifest
from core.api.config import EngineConfig
from core.api.errors import PluginError, UserError
from core.engine.revival import EngineSource
from core.engine.tokenizing import load_shared_tokenizer
from core.engine.zmq_client import ZmqClient
from core.tokens.tokenizer import Tokenizer


class Resolved(Protocol):
    """A resolved configuration, as far as the start of an engine looks at it."""

    @property
    def engine(self) -> EngineConfig:
        """The configuration."""
        ...

    @property
    def manifest(self) -> CheckpointManifest:
        """The checkpoint."""
        ...

    def without(self, error: PluginError) -> Self:
        """The same without the plugin that failed. Raises `error` where that is not allowed."""
        ...


async def start_engine_and_tokenizer(resolution: Resolved, source: EngineSource) -> tuple[ZmqClient, Tokenizer]:
    """The first client of `source`, and the tokenizer of its model, which is loaded meanwhile.

    Raises what the source raises, and UserError when there is no tokenizer. Then no engine is left behind.
    """
    config = resolution.engine
    files = resolution.manifest.tokenizer
    loading = asyncio.create_task(asyncio.to_thread(load_shared_tokenizer, files, config.model))
    starting = asyncio.create_task(source.first())
    try:
        tokenizer, client = await asyncio.gather(loading, starting)
    except BaseException:
        starting.cancel()
        await asyncio.gather(loading, starting, return_exceptions=True)
        if not starting.cancelled() and starting.exception() is None:
            await starting.result().close()
        await source.close()
        raise
    if tokenizer is None:
        await client.close()
        await source.close()
        raise UserError(
            f"The checkpoint {config.model.model!r} has no tokenizer; name one with --tokenizer, "
            "or serve token ids alone with --skip-tokenizer-init."
        )
    return client, tokenizer
