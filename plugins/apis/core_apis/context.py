"""The objects that every route needs: engine, settings, preparation of requests, metrics.

Owns: `ServingContext`. Never does: handle a request. Called by: `core_apis.app` (builds it), routes (through
`context_of`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fastapi import Request
from msgspec import UNSET, UnsetType

from core.api.config import ModelConfig
from core_apis.batches.service import BatchService
from core_apis.batches.store import BatchStore, owner_of
from core_apis.body import BodyRoom
from core_apis.callers.tenant import Tenant
from core_apis.callers.tenants import Tenants
from core_apis.durable.streams import DurableStreams
from core_apis.engine_protocol import ServingEngine
from core_apis.fingerprint import fingerprint_of
from core_apis.histories.memory import Histories
from core_apis.prepare.preparer import Preparer
from core_apis.receipts import ServerReceipts
from core_apis.responses.store import ResponseStore
from core_apis.served_adapters import ServedAdapters
from core_apis.served_names import ServedNames
from core_apis.server.drain import Drain
from core_apis.sessions.service import SessionService
from core_apis.tolerated_fields import ToleratedFields
from core_apis.traffic.recorder import TrafficRecorder
from core_apis.watching import Generate
from core_config.served.server_config import ServerConfig
from core_observers.metrics import ServerMetrics
from core_observers.recent_requests import RecentRequests

if TYPE_CHECKING:
    from core_apis.observed.tracing import Tracing
    from core_apis.prefill.router import PrefillRouter
    from core_apis.quotes import ServerQuotes
    from core_apis.tools.tool_servers import ToolServers


@dataclass(slots=True)
class ServingContext:
    """The shared state of one application.

    bodies: the memory for request bodies.
    responses: the stored responses of /v1/responses.
    adapters: the adapters that the server answers for; None: it has none.
    generate: the engine's `generate`, wrapped by the observers of each prompt.
    pipeline: the `core_apis.pipeline.Pipeline`, the steps of every request that needs the engine. It and the rows import this
        context, so their types are not imported here.
    exchanges: the rows of the APIs, each a `core_apis.exchange.Exchange`, by the kind of their bodies.
    drain: whether the server takes requests, and which ones run.
    tenants: which tenants share cached prefixes.
    durable: streams that outlive their connections; None: none do.
    tracing: sends spans of requests; None: tracing is off.
    receipts: what makes receipts of answers; None: none are given.
    traffic: records some requests; None: it records none.
    recent: the requests that ran last, for the page.
    explain: the configuration as plain values, for the page.
    created: seconds since the epoch.
    histories: the earlier conversations, for explanations of later ones.
    sessions: of all keys.
    batches: files and batches; None: the server has neither.
    quotes: what requests would take; None: the server quotes nothing.
    prefill: sends prompts to other servers; None: it knows none.
    tools: the tool servers of the operator; None: there are none.
    """

    engine: ServingEngine
    server: ServerConfig
    model: ModelConfig
    preparer: Preparer
    bodies: BodyRoom
    metrics: ServerMetrics
    responses: ResponseStore
    sessions: SessionService
    generate: Generate
    pipeline: Any
    exchanges: Mapping[str, Any]
    drain: Drain = field(default_factory=Drain)
    tenants: Tenants = field(default_factory=Tenants)
    durable: DurableStreams | None = None
    adapters: ServedAdapters | None = None
    tracing: Tracing | None = None
    receipts: ServerReceipts | None = None
    traffic: TrafficRecorder | None = None
    recent: RecentRequests = field(default_factory=RecentRequests)
    explain: Callable[[], dict[str, Any]] | None = None
    created: int = field(default_factory=lambda: int(time.time()))
    tolerated: ToleratedFields = field(default_factory=ToleratedFields)
    histories: Histories = field(default_factory=Histories)
    batches: BatchService | None = None
    quotes: ServerQuotes | None = None
    prefill: PrefillRouter | None = None
    tools: ToolServers | None = None

    @property
    def names(self) -> ServedNames:
        """Return the model names that the server answers to."""
        return self.preparer.here.names

    @property
    def weight_version(self) -> str | UnsetType:
        """Return the version of the current weights; UNSET for those that the engine was started with."""
        return self.engine.stats.weight_version or UNSET

    @property
    def fingerprint(self) -> str | UnsetType:
        """Return what `system_fingerprint` of answers says; UNSET: nothing."""
        mode = self.server.fingerprint_mode
        if mode == "weights":
            return self.weight_version
        return fingerprint_of(self.engine, mode, self.server.fingerprint_value) or UNSET

    async def until_idle(self) -> None:
        """Wait until everything that runs has ended, background responses included; for a server that drains.

        Batches are suspended: the next server goes on with them.
        """
        if self.batches is not None:
            await self.batches.suspend()
        await self.drain.idle()
        await self.responses.until_idle()

    async def close(self) -> None:
        """End everything that runs besides requests (background responses, the helper process), and close the journal."""
        await self.suspend()
        await self.responses.close()
        if self.durable is not None:
            await self.durable.journal.close()
        await self.preparer.close()
        await self.sessions.pins.close()
        if self.prefill is not None:
            await self.prefill.close()
        if self.tools is not None:
            await self.tools.close()
        if self.traffic is not None:
            await asyncio.to_thread(self.traffic.close)
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.close)

    async def suspend(self) -> None:
        """Stop, before the engine ends, what the next server will continue."""
        if self.batches is not None:
            await self.batches.suspend()
        if self.durable is not None:
            await self.responses.suspend()
            await self.durable.suspend()


def context_of(request: Request) -> ServingContext:
    """Return the context of the app that serves `request`."""
    context = request.app.state.context
    assert isinstance(context, ServingContext)
    return context


def tenant_of(request: Request) -> Tenant:
    """Return the tenant of a request: the index of its key, with admin keys after the others; None without a key."""
    number: Tenant = getattr(request.state, "api_key", None)
    return number


def user_of(context: ServingContext, tenant: Tenant, named: object) -> str:
    """Return the user of a request: its key if there are several keys, else the body's `user` field."""
    if tenant is not None and len(context.server.keys) > 1:
        return f"API key {tenant}"
    return named if isinstance(named, str) else ""


def batches_of(request: Request) -> tuple[BatchStore, str]:
    """Return the files and batches of the server, and the directory of the request's key in it."""
    context = context_of(request)
    batches = context.batches
    assert batches is not None  # a server without them has none of their routes
    batches.begin()
    return batches.store, owner_of(context.tenants.name(tenant_of(request)))
