"""POST /abort_requests and /inference/v1/abort_requests. Owns: which requests a name means, and the answer.

Never does: end a request (the engine does). An API process ends the requests that came to it, and no others.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec
from fastapi import APIRouter, Request, Response

from core.api.errors import UNREADABLE, RequestError
from core_apis.body import json_response, read_body
from core_apis.context import context_of
from core_apis.protocol.operation import AbortAnswer, AbortRequest

MOST_BYTES = 1 << 18
"""Bytes of a body, some 6,000 ids of answers: 250,000 ids of one letter, in 1 MiB, took 14 ms of the event loop."""

router = APIRouter(tags=["operation"])


@router.post("/abort_requests")
@router.post("/inference/v1/abort_requests")
async def abort_requests(request: Request) -> Response:
    """End running requests; their answers end with the finish reason `abort`.

    `request_ids` names them by the ids of their answers, or by the ids that their clients chose. Without any, all end.
    """
    context = context_of(request)
    with context.bodies.body(MOST_BYTES) as body:
        data = b"".join(await read_body(request, body))
        try:
            wanted = frozenset(msgspec.json.decode(data or b"{}", type=AbortRequest).request_ids)
        except UNREADABLE as error:
            raise RequestError(f"The body is not understood: {error}.", param="body") from None
    engine = context.engine
    doomed = [name for name in engine.live_ids if not wanted or _is_named(name, wanted)]
    for name in doomed:
        await engine.abort(name)
    return json_response(AbortAnswer("aborted", len({_answer_id(name) for name in doomed})))


def _is_named(engine_id: str, wanted: Collection[str]) -> bool:
    """Whether one of these names means a request of the engine: `cmpl-MINE` is also named `MINE`."""
    answer_id = _answer_id(engine_id)
    return answer_id in wanted or answer_id.partition("-")[2] in wanted


def _answer_id(engine_id: str) -> str:
    """Return the id of the answer: the engine's ids end with a prompt's index and a random word."""
    return engine_id.rsplit("-", 2)[0]
