"""GET /docs and /redoc: every route, its fields and its answers, from the OpenAPI document. Owns: the routes.

The page is ours and needs no network: FastAPI's own fetches its script from elsewhere, and stays blank without it.
"""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request, Response

from core.serving.routes.page import HEADERS, page_answer

router = APIRouter(include_in_schema=False)

FILES: Final = {
    "page.css": "text/css",
    "elements.js": "text/javascript",
    "reference.js": "text/javascript",
}
"""The files beside `reference.html`, and their types."""


@router.get("/docs")
@router.get("/redoc")
async def docs(request: Request) -> Response:
    """The page."""
    return page_answer(request, "reference.html", "text/html")


@router.get("/docs/{name}")
async def docs_file(request: Request, name: str) -> Response:
    """A file of the page."""
    kind = FILES.get(name)
    if kind is None:
        return Response(status_code=404, headers=HEADERS)
    return page_answer(request, name, kind)
