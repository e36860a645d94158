"""GET /metrics in Prometheus' text format. Owns: the route."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from core_apis.context import context_of

router = APIRouter(tags=["operation"])


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Return all metrics of this server and its engine."""
    page = await context_of(request).metrics.render()
    return Response(page, media_type=CONTENT_TYPE_LATEST)
