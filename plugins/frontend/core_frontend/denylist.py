"""The denylist of requests that have made engines die.

Owns: `Denylist`: the digests of such requests, and the refusal of equal ones. Never does: determine which request it was
(`core_frontend.suspects` does), or end one. Called by: the recovery (adds), `AsyncEngine` (checks each new request).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable

import msgspec

from core.api.errors import RequestError
from core.api.messages import EngineRequest
from core_frontend.api.sampling_fields import field_names

MATTERS = field_names(lambda field: field.decides)
"""Sampling parameters that make requests with equal prompts different."""

REFUSED_S = 600.0
MOST_DIGESTS = 1024

KILLER_STATUS = 422
KILLER_CODE = "request_kills_engine"


class Denylist:
    """The denylist of one client. clock: seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._causes: dict[bytes, tuple[float, str]] = {}

    def __len__(self) -> int:
        return len(self._causes)

    def add(self, request: EngineRequest, cause: str) -> None:
        """Add a request that makes engines die. cause: of the deaths, one word."""
        digest = _digest(request)
        self._causes.pop(digest, None)
        self._causes[digest] = (self._clock() + REFUSED_S, cause)
        if len(self._causes) > MOST_DIGESTS:
            oldest = next(iter(self._causes))
            del self._causes[oldest]

    def is_known(self, request: EngineRequest) -> bool:
        """Whether engines have recently died of an equal request."""
        return self._entry(request) is not None

    def check(self, request: EngineRequest) -> None:
        """Raise RequestError for a request that is equal to one in the denylist."""
        entry = self._entry(request)
        if entry is None:
            return
        until, cause = entry
        raise RequestError(
            f"Engines have died of an equal request (cause: {cause}), so this one is not run; it is refused for another "
            f"{until - self._clock():.0f} s. Change the prompt or the sampling parameters, and tell the server's operator: "
            "the log says what the engine died of.",
            status=KILLER_STATUS,
            code=KILLER_CODE,
        )

    def _entry(self, request: EngineRequest) -> tuple[float, str] | None:
        if not self._causes:
            return None
        digest = _digest(request)
        entry = self._causes.get(digest)
        if entry is not None and entry[0] <= self._clock():
            del self._causes[digest]
            return None
        return entry


def _digest(request: EngineRequest) -> bytes:
    """Return a digest of everything that affects the computation."""
    params = request.params
    grammar = None if request.grammar is None else request.grammar.key
    computed = [
        request.prompt_token_ids,
        request.prompt_embeds,
        request.allowed_ids,
        grammar,
        request.pooling,
        request.adapter,
        [(item.start, item.digest) for item in request.media],
        *(getattr(params, name) for name in MATTERS),
    ]
    whole = msgspec.msgpack.encode(computed, enc_hook=repr, order="deterministic")
    return hashlib.sha256(whole).digest()
