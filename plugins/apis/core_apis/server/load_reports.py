"""Reports of the load in headers of answers, for balancers that ask for them (ORCA, Open Request Cost Aggregation).

Owns: `LoadReports` and the two forms of a report. Never does: count. Called by: the application.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from core.api.stats import SchedulerStats

ASKS = "endpoint-load-metrics-format"
TELLS = "endpoint-load-metrics"


class LoadReports:
    """Middleware that answers with the engine's load where a request asks for it, as `TEXT` or as `JSON`.

    stats: returns the engine's latest.
    """

    def __init__(self, app: ASGIApp, stats: Callable[[], SchedulerStats]) -> None:
        self.app = app
        self.stats = stats

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on and add the header to its answer."""
        form = Headers(scope=scope).get(ASKS, "").upper() if scope["type"] == "http" else ""
        if form not in ("TEXT", "JSON"):
            await self.app(scope, receive, send)
            return

        async def send_with_load(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[TELLS] = report(form, self.stats())
            await send(message)

        await self.app(scope, receive, send_with_load)


def report(form: str, stats: SchedulerStats) -> str:
    """Return the value of the header. form: `TEXT` or `JSON`."""
    metrics = {
        "kv_cache_usage_perc": round(stats.kv_cache_usage, 6),
        "num_requests_running": stats.num_running,
        "num_requests_waiting": stats.num_waiting,
    }
    if form == "JSON":
        return f"JSON {json.dumps({'named_metrics': metrics})}"
    return "TEXT " + ", ".join(f"named_metrics.{name}={value}" for name, value in metrics.items())
