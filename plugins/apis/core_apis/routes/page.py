"""GET /: the web page for people, its files and its data.

Owns: the routes, and what the page may do. Never does: write metrics (the page reads /metrics).

The files are the same for everybody and need no key. Their data does need one: the page asks for a key and sends it.
"""

from __future__ import annotations

import hashlib
import time
from importlib.resources import files
from typing import Final

import msgspec
from fastapi import APIRouter, Request, Response

from core.version import __version__
from core_apis.body import json_response
from core_apis.context import context_of, tenant_of

router = APIRouter(include_in_schema=False)

FILES: Final = {
    "page.css": "text/css",
    "page.js": "text/javascript",
    "server.js": "text/javascript",
    "chat.js": "text/javascript",
    "conversation.js": "text/javascript",
    "settings.js": "text/javascript",
    "keeping.js": "text/javascript",
    "copying.js": "text/javascript",
    "markdown.js": "text/javascript",
    "inline.js": "text/javascript",
    "message.js": "text/javascript",
    "pictures.js": "text/javascript",
    "logprobs.js": "text/javascript",
    "live.js": "text/javascript",
    "charts.js": "text/javascript",
    "configuration.js": "text/javascript",
    "elements.js": "text/javascript",
}
"""The files that `index.html` loads, and their types."""

HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
"""The content security policy: only these files run, whatever a model writes, and requests go only to this server."""


@router.get("/")
async def index(request: Request) -> Response:
    """Return the page, which is the same for everybody and needs no key."""
    return page_answer(request, "index.html", "text/html")


@router.get("/page/{name}")
async def page_file(request: Request, name: str) -> Response:
    """Return a file of the page."""
    return page_answer(request, name, FILES.get(name))


@router.get("/live/requests")
async def live_requests(request: Request) -> Response:
    """Return the requests of this API key that ran last, without their texts."""
    context = context_of(request)
    entries = context.recent.of(tenant_of(request))
    return json_response({"version": __version__, "now": time.time(), "requests": msgspec.to_builtins(entries)})


@router.get("/live/configuration")
async def live_configuration(request: Request) -> Response:
    """Return every value with its origin and reason, as `core config explain` does."""
    explain = context_of(request).explain
    return json_response({} if explain is None else explain())


def page_answer(request: Request, name: str, kind: str | None) -> Response:
    """Return a file of `core_apis.page`. kind: its media type; None: there is no such file."""
    if kind is None:
        return Response(status_code=404, headers=HEADERS)
    body, tag = _read(name)
    headers = {**HEADERS, "etag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=f"{kind}; charset=utf-8", headers=headers)


def _read(name: str) -> tuple[bytes, str]:
    """Return the content of a file, and its ETag."""
    body = files("core_apis.page").joinpath(name).read_bytes()
    digest = hashlib.sha256(body).hexdigest()[:16]
    return body, f'"{digest}"'
