"""The files and batches of a server.

Owns: which batches run, and when. Never does: read or write a file itself, or answer a request. Called by: `core_apis.app`
(builds), the launcher (begins, suspends), the routes of files and batches.

Several API processes, and servers one after another, share the directory: each looks for batches that nobody runs.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from starlette.types import ASGIApp

from core.api.config import EngineConfig
from core.api.errors import CoreError, UserError
from core_apis.batches.elsewhere import CommonFiles
from core_apis.batches.run import BatchRun, Surroundings
from core_apis.batches.store import BatchStore, owner_of
from core_apis.callers.tenant import Tenant
from core_apis.callers.tenants import tenant_name
from core_config.served.server_config import ServerConfig
from core_frontend.queue.common import CommonCounts

logger = logging.getLogger("core_apis")

LOOK_S = 2.0
"""Seconds between two looks for batches that nobody runs."""
RETRY_S = 10.0
"""Seconds after which a run that failed for want of disk space is tried again."""
MOST_RUNS = 8
"""Limit of the batches that one process runs at once; they share its requests."""
AHEAD = 2
"""Requests at once for each sequence that the engine runs: the next ones are prepared while these run."""


class BatchService:
    """The files and batches of one server process. store: on the disk."""

    def __init__(self, server: ServerConfig, engine: EngineConfig, store: BatchStore) -> None:
        self.store = store
        keys: list[str | None] = list(server.keys) or [None]
        self._keys = {owner_of("" if key is None else tenant_name(key)): key for key in keys}
        if not server.api_keys:  # admin keys alone: requests may have none
            self._keys[owner_of("")] = None
        scheduler = engine.scheduler
        limits = (scheduler.max_num_queued_reqs, scheduler.max_num_reqs_per_key, scheduler.max_num_queued_reqs_per_key)
        self._at_once = max(1, min([AHEAD * scheduler.max_num_seqs, *[limit for limit in limits if limit]]))
        self._model = engine.model.served_names[0]
        self._max_body_size = server.limits.max_body_size
        self._app: ASGIApp | None = None
        self._watch: asyncio.Task[None] | None = None
        self._runs: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._ended: set[tuple[str, str]] = set()
        self._news = asyncio.Event()

    def serve(self, app: ASGIApp) -> None:
        """Set the application that answers the requests of batches."""
        self._app = app

    def begin(self) -> None:
        """Run the batches of this directory from now on, also those of earlier servers."""
        if self._watch is None and self._app is not None:
            self._watch = asyncio.ensure_future(self._watching(self._app))
        self._news.set()

    async def suspend(self) -> None:
        """End all runs; what they have is kept for the next server."""
        self._app = None
        tasks = [*self._runs.values(), *([] if self._watch is None else [self._watch])]
        self._watch = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watching(self, app: ASGIApp) -> None:
        around = Surroundings(
            app, self.store, asyncio.Semaphore(self._at_once), self._at_once, self._model, self._max_body_size
        )
        while True:
            self._news.clear()
            try:
                for owner, name in await asyncio.to_thread(self._unfinished):
                    if len(self._runs) < MOST_RUNS and (owner, name) not in self._runs:
                        self._runs[owner, name] = asyncio.ensure_future(self._run(around, owner, name))
            except OSError as error:
                logger.warning("Batches are not looked for: %s.", error)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), LOOK_S)

    def _unfinished(self) -> list[tuple[str, str]]:
        """Return the batches that have not ended, of the owners whose key this server has, the oldest first."""
        found: list[tuple[int, str, str]] = []
        for owner in self.store.owners():
            if owner not in self._keys:
                continue
            for name in self.store.names(owner, "batch_"):
                if (owner, name) in self._ended:
                    continue
                batch = self.store.batch(owner, name)
                if batch is None or batch.has_ended:
                    self._ended.add((owner, name))
                else:
                    found.append((batch.created_at, owner, name))
        return [(owner, name) for _, owner, name in sorted(found)]

    async def _run(self, around: Surroundings, owner: str, name: str) -> None:
        """Run one batch; after a failure it is tried again later."""
        try:
            batch = await asyncio.to_thread(self.store.batch, owner, name)
            if batch is not None:
                run = BatchRun(around, owner, self._keys[owner], batch)
                await run.run()
                if not run.batch.has_ended:
                    await asyncio.sleep(LOOK_S)  # another process runs it
        except (OSError, CoreError) as error:
            logger.warning("The batch %s is tried again in %g s: %s", name, RETRY_S, error)
            await asyncio.sleep(RETRY_S)
        finally:
            del self._runs[owner, name]
            self._news.set()


def batch_service(
    server: ServerConfig, engine: EngineConfig, common: CommonCounts | None = None
) -> BatchService | None:
    """Return the service of a server with a directory for it. common: counts files at other servers too.

    Raises UserError for a directory that cannot be used.
    """
    if server.batches is None:
        return None
    owners: dict[str, Tenant] = {owner_of(""): None}
    owners |= {owner_of(tenant_name(key)): number for number, key in enumerate(server.keys)}
    try:
        store = BatchStore(server.batches, None if common is None else CommonFiles(common, owners))
        if common is not None:
            for owner in owners:
                store.room(owner)
    except OSError as error:
        raise UserError(f"--batch-directory {server.batches.directory}: cannot be used: {error}.") from None
    return BatchService(server, engine, store)
