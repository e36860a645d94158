"""One server of prompts: what it would take for a prompt, and the ticket for the pages of one that it has computed.

Owns: `PrefillServer`: its two calls, and how long it is left alone after failures. Never does: choose, or fetch a page (the
engine does, from an address in `--kv-peers` alone). Called by: the router (`core_apis.prefill.router`).

Both calls carry the API key of the request that they are for, since pages belong to its tenant.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Annotated, Any, Final

import httpx
import msgspec

from core.api.errors import UNREADABLE, RequestError
from core_apis.prefill.choice import Offer
from core_apis.protocol.transfer_params import FIELD, TransferParams
from core_frontend.kv_transfer import KVTransfer
from core_frontend.quote.forecast import Interval

logger = logging.getLogger("core_apis")

MOST_BYTES: Final = 1 << 20
"""Most bytes of an answer: a quote has some hundred, and an answer of one token with a ticket less than two thousand."""
FAILURES: Final = 3
"""After so many failures in a row a server is left alone."""
FIRST_REST_S, LONGEST_REST_S = 1.0, 60.0
NO_ROOM: Final = 503
NO_PATH: Final = 404
FAILURES_OF_CALLS: Final = (httpx.HTTPError, TimeoutError, *UNREADABLE)
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class RefusedError(Exception):
    """Raised when a server refuses a prompt, such as for want of room, which is no failure; the message is its sentence."""


class FirstToken(msgspec.Struct):
    """When the first token comes. low, high: seconds. A negative time would draw every prompt to that server."""

    low: Seconds
    high: Seconds


class QuotedPages(msgspec.Struct):
    """One prompt of a quote. kv_bytes: of its pages."""

    kv_bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]


class PrefillQuote(msgspec.Struct):
    """A quote, as far as it is read. See `core_apis.protocol.quote.Quote`."""

    prompts: list[QuotedPages]
    first_token: FirstToken | None
    would_be_refused: str | None


class PrefillAnswer(msgspec.Struct):
    """The answer to a completion of one token, as far as it is read."""

    kv_transfer_params: TransferParams | None = None


class PrefillServer:
    """A server of prompts. number: its place in `--prefill-servers`. client: of all calls."""

    def __init__(self, number: int, url: str, client: httpx.AsyncClient) -> None:
        self.number = number
        self.url = url.rstrip("/")
        self._client = client
        self._failures = 0
        self._rests_until = 0.0

    @property
    def rests(self) -> bool:
        """Whether it is left alone after failures."""
        return time.monotonic() < self._rests_until

    async def quote(self, body: Mapping[str, Any], key: Mapping[str, str], limit_s: float) -> Offer | None:
        """Return what a prompt would take there; None: it cannot be had. limit_s: seconds to wait for the answer."""
        try:
            text = await self._post("/v1/quote?path=/v1/completions", body, key, limit_s)
            quoted = msgspec.json.decode(text, type=PrefillQuote)
        except RefusedError as error:
            logger.debug("The server of prompts %s takes none: %s", self.url, error)
            return None
        except FAILURES_OF_CALLS as error:
            self.failed(error)
            return None
        first = quoted.first_token
        if quoted.would_be_refused is not None or len(quoted.prompts) != 1:
            return None
        num_bytes = quoted.prompts[0].kv_bytes
        first_s = 0.0 if first is None else Interval(first.low, first.high).middle
        return Offer(self.number, first_s, num_bytes)

    async def compute(self, body: Mapping[str, Any], key: Mapping[str, str], limit_s: float) -> KVTransfer | None:
        """Have it compute a prompt; returns where its pages are; None: it has not computed it, or there is no ticket."""
        asked = {**body, FIELD: {"do_remote_decode": True}}
        try:
            text = await self._post("/v1/completions", asked, key, limit_s)
            params = msgspec.json.decode(text, type=PrefillAnswer).kv_transfer_params
            transfer = None if params is None else params.asked()
        except (RefusedError, RequestError) as error:
            logger.debug("The server of prompts %s computed none: %s", self.url, error)
            return None
        except FAILURES_OF_CALLS as error:
            self.failed(error)
            return None
        self._failures = 0
        return transfer

    def failed(self, error: Exception) -> None:
        """Count a failure; after three in a row the server is left alone, for longer each time."""
        self._failures += 1
        said = str(error) or type(error).__name__
        if self._failures < FAILURES:
            logger.debug("The server of prompts %s failed: %s", self.url, said)
            return
        rest_s = min(FIRST_REST_S * 2 ** (self._failures - FAILURES), LONGEST_REST_S)
        self._rests_until = time.monotonic() + rest_s
        logger.warning("The server of prompts %s is left alone for %g s, since it failed: %s", self.url, rest_s, said)

    async def _post(self, path: str, body: Mapping[str, Any], key: Mapping[str, str], limit_s: float) -> bytes:
        """Return the text of an answer. Raises RefusedError, HTTPError and TimeoutError."""
        headers = {"content-type": "application/json", **key}
        content = msgspec.json.encode(body)
        text = bytearray()
        async with (
            asyncio.timeout(limit_s),
            self._client.stream("POST", self.url + path, content=content, headers=headers) as answer,
        ):
            async for piece in answer.aiter_bytes():
                text += piece
                if len(text) > MOST_BYTES:
                    raise httpx.DecodingError(f"its answer is longer than {MOST_BYTES} bytes")
        if answer.status_code == 200:
            return bytes(text)
        said = f"status {answer.status_code}: {text[:200].decode(errors='replace')}"
        refuses = 400 <= answer.status_code < 500 and answer.status_code != NO_PATH
        if refuses or answer.status_code == NO_ROOM:
            raise RefusedError(said)
        raise httpx.RequestError(said)
