"""An API request as data: its kind of body, how its answer is identified, and what writes the answer.

Owns: `Exchange`, the row, and `Answer`, the interface of a row's writer. Never does: run anything (`core_apis.pipeline`
does). Called by: the routes, which declare rows; the pipeline; `core_apis.durable`, which answers what earlier servers
began.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol
from uuid import uuid4

from fastapi import Request, Response

from core_apis.answers.event_stream import DONE
from core_apis.answers.prompt_output import Outputs, PromptOutput
from core_apis.context import ServingContext
from core_apis.errors import error_event
from core_apis.server.middleware import client_request_id

NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class Answer(Protocol):
    """The answer to one prepared request: streamed as events if the field `stream` of its body is true, else whole."""

    async def whole(self, outputs: Outputs) -> Response:
        """Return the answer once all outputs are there. Closes `outputs`."""
        ...

    def events(self, first: PromptOutput, outputs: Outputs) -> AsyncGenerator[bytes, None]:
        """Yield complete events.

        first: the first output, already awaited; outputs: those after it, closed at the end.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One row: a kind of request, and how it is answered.

    kind:     the kind of body; its preparation and the journal use this name.
    identify: returns the answer's id, from the request and the prepared body.
    answer:   returns the `Answer`, from the server's context, the prepared body, the answer's id, and the seconds since
              the epoch at which it was created.
    lasts:    whether its streams outlive their connections, if a journal is kept.
    headers:  returns additional headers of the answer, from its id.
    prepare:  prepares bodies that become several requests, from the server's preparer and the pieces of the body; None: the
              preparation of their kind is all.
    done, failed: the end of a successful stream, and of a failed one.
    """

    kind: str
    identify: Callable[[Request, Any], str]
    answer: Callable[[ServingContext, Any, str, int], Answer]
    lasts: bool = False
    headers: Callable[[str], Mapping[str, str]] = lambda answer_id: NO_HEADERS
    prepare: Callable[..., Coroutine[Any, Any, Any]] | None = None
    done: bytes = DONE
    failed: Callable[[Exception], bytes] = error_event


def id_with(prefix: str) -> Callable[[Request, Any], str]:
    """Return a function that makes ids of answers: `prefix` and the request's id, from the body, else from
    `X-Request-Id`, else new.
    """

    def identify(request: Request, prepared: Any) -> str:
        return f"{prefix}-{prepared.body.request_id or client_request_id(request.headers) or uuid4().hex}"

    return identify
