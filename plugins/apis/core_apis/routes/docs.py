"""GET /openapi.json, /docs and /redoc: every route, its fields and its answers.

Owns: the routes. The page is ours and needs no network: FastAPI's own page fetches its script from elsewhere, and stays
blank without it.
"""

from __future__ import annotations

import asyncio
from typing import Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from core_apis.routes.page import page_answer

router = APIRouter(include_in_schema=False)

FILES: Final = {
    "page.css": "text/css",
    "elements.js": "text/javascript",
    "reference.js": "text/javascript",
}
"""The files that `reference.html` loads, and their types."""


@router.get("/openapi.json")
async def openapi(request: Request) -> Response:
    """Return the OpenAPI document. It is made in a thread, since that takes 40 ms of CPU time the first time."""
    return await asyncio.to_thread(_document, request)


@router.get("/docs")
@router.get("/redoc")
async def docs(request: Request) -> Response:
    """Return the reference page."""
    return page_answer(request, "reference.html", "text/html")


@router.get("/docs/{name}")
async def docs_file(request: Request, name: str) -> Response:
    """Return a file of the page."""
    return page_answer(request, name, FILES.get(name))


def _document(request: Request) -> Response:
    """Return the document for the address at which this client reaches the server.

    Its paths begin at a proxy's prefix (`--root-path`).
    """
    document = request.app.openapi()
    root_path = request.scope.get("root_path", "").rstrip("/")
    if root_path:
        document = {**document, "servers": [{"url": root_path}]}
    return JSONResponse(document)
