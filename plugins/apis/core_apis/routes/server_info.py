"""GET /server_info. Owns: its answer."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from core.api.errors import RequestError
from core.version import __version__
from core_apis.body import json_response
from core_apis.context import context_of
from core_apis.protocol.operation import ServerInfo

router = APIRouter(tags=["operation"])


@router.get("/server_info")
async def server_info(request: Request) -> Response:
    """Return the version, the names and the configuration with the origin of every value; secrets are left out."""
    context = context_of(request)
    form = request.query_params.get("config_format", "json")
    if form != "json":
        raise RequestError(f"config_format is {form[:100]!r}; only 'json' is served.", param="config_format")
    configuration = {} if context.explain is None else context.explain()
    return json_response(ServerInfo(__version__, list(context.names.now()), configuration))
