"""Intake of a request: its steps up to the prepared body, in the order in which refusing costs least.

Owns: that order: check for a place in the queue, read the body, reserve a place, prepare. Never does: one of them
itself. Called by: the pipeline, and the routes that answer without the engine.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import ExitStack, asynccontextmanager
from typing import Any, TypeVar

from fastapi import Request

from core_apis.body import JSON, read_body
from core_apis.callers.tenant import Tenant
from core_apis.context import ServingContext
from core_apis.prepare.preparer import SMALL_BODY
from core_apis.protocol.decoding import too_deep
from core_apis.server.disconnect import until_disconnect
from core_frontend.queue.limit import Arrival

T = TypeVar("T")


@asynccontextmanager
async def intake(
    context: ServingContext,
    request: Request,
    tenant: Tenant,
    prepare: Callable[..., Coroutine[Any, Any, T]],
    content_type: str = JSON,
) -> AsyncIterator[tuple[T, Arrival]]:
    """Yield the prepared body of a request, and the place in the queue that is reserved for it.

    prepare: the preparation, from the pieces of the body, each an argument.
    content_type: of the body.

    Raises RequestError, with status 429 or 503 before anything is read, and ClientGone. A body that is nested too
    deeply is refused wherever that shows, in the answer's beginning too.
    """
    context.drain.check()
    queue = context.engine.queue
    queue.check(tenant)
    try:
        with ExitStack() as places:
            with context.bodies.body() as body:
                pieces = await read_body(request, body, content_type)
                arrival = places.enter_context(queue.arriving(tenant))
                work = prepare(*pieces)
                is_small = sum(map(len, pieces)) <= SMALL_BODY
                prepared = await (work if is_small else until_disconnect(request.receive, work))
            yield prepared, arrival
    except RecursionError:
        raise too_deep() from None
