"""The start of an engine process and its tokenizer, at the same time.

Owns: the start, and another one if a plugin fails. Never does: run requests. Called by: `AsyncEngine.start`, the
supervisor of API processes.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, Self, TypeVar

from core.api.config import EngineConfig
from core.api.errors import PluginError
from core_frontend.group.client import GroupClient
from core_frontend.group.source import GroupSource
from core_frontend.prompts.tokenizing import load_shared_tokenizer
from core_runtime.specs.checkpoint import CheckpointManifest
from core_supervision.child import EngineProcess
from core_supervision.link.zmq_client import ZmqClient
from core_supervision.revival import OwnedEngineSource
from core_tokens.tokenizer import Tokenizer

R = TypeVar("R", bound="Resolved")
C_co = TypeVar("C_co", bound="EngineClient", covariant=True)
EngineClient = ZmqClient | GroupClient
"""The client of one engine, or of a group of them."""


class ClientSource(Protocol[C_co]):
    """Starts engines, or connects to them."""

    async def first(self) -> C_co:
        """Return the first client. Raises UserError, PluginError or EngineDeadError when there is none."""
        ...

    async def close(self) -> None:
        """Release everything kept for further engines."""
        ...


class Resolved(Protocol):
    """A resolved configuration, reduced to what the start of an engine needs."""

    @property
    def engine(self) -> EngineConfig:
        """Return the engine's part of the configuration."""
        ...

    @property
    def manifest(self) -> CheckpointManifest:
        """Return the manifest of the checkpoint."""
        ...

    def without(self, error: PluginError) -> Self:
        """Return the resolution without the plugin that failed. Raises `error` if that is not allowed."""
        ...


async def start_with_fallbacks(
    resolution: R, executor: str | None, process: EngineProcess | None
) -> tuple[R, OwnedEngineSource | GroupSource, EngineClient, Tokenizer]:
    """Start an engine of ours, or a group of them; return its client with its source and its tokenizer.

    If a plugin fails and that is allowed, the start is repeated without it, with another resolution.

    executor: MODULE:CLASS of another executor than the default.
    process: an already spawned process, for the first engine.

    Raises UserError for a mistake in the configuration, PluginError for a plugin that fails (see `Resolved.without`),
    EngineDeadError when the engine does not come up.
    """
    while True:
        config = resolution.engine
        source: OwnedEngineSource | GroupSource
        if config.data_parallel_size > 1:
            source = GroupSource.owned(config, executor, process)
        else:
            source = OwnedEngineSource(config, executor=executor, process=process)
        starting: ClientSource[EngineClient] = source
        try:
            client, tokenizer = await start_engine_and_tokenizer(resolution, starting)
        except BaseException as error:
            await source.close()
            if not isinstance(error, PluginError):
                raise
            resolution = await asyncio.to_thread(resolution.without, error)
            # The spawned process has been used by the failed start.
            process = None
        else:
            return resolution, source, client, tokenizer


async def start_engine_and_tokenizer(resolution: Resolved, source: ClientSource[C_co]) -> tuple[C_co, Tokenizer]:
    """Return the first client of `source`, and the tokenizer of its model, which is loaded meanwhile.

    Raises the source's errors, and UserError if there is no tokenizer. Then no engine is left running.
    """
    config = resolution.engine
    files = resolution.manifest.tokenizer
    loading = asyncio.create_task(asyncio.to_thread(load_shared_tokenizer, files, config))
    starting = asyncio.create_task(source.first())
    try:
        tokenizer, client = await asyncio.gather(loading, starting)
    except BaseException:
        starting.cancel()
        await asyncio.gather(loading, starting, return_exceptions=True)
        # The engine may have come up although the tokenizer failed.
        if not starting.cancelled() and starting.exception() is None:
            await starting.result().close()
        await source.close()
        raise
    return client, tokenizer
