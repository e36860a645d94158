"""An HTTP client that ends a session in which a tool server sends too much.

Owns: the limit on bytes, the refusal of compressed answers. Never does: follow proxies of the environment. Called by:
`core_apis.tools.mcp_server`.

The `mcp` package reads a JSON answer whole before it looks at it, so the limit lies below it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import httpx2

MOST_BYTES: Final = (1 << 20) + (256 << 10)
"""Maximum number of bytes of one session: a result of 1 MiB, its envelope, and the messages before it."""
CONNECT_S: Final = 10.0
READ_S: Final = 60.0


class TooMuch(httpx2.TransportError):
    """A tool server sent more than `MOST_BYTES`."""


class LimitedTransport(httpx2.AsyncBaseTransport):
    """The network, for as many bytes as one session may take."""

    def __init__(self, inner: httpx2.AsyncBaseTransport | None = None) -> None:
        self._inner = httpx2.AsyncHTTPTransport() if inner is None else inner
        self.num_bytes = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request. Raises TooMuch while its answer is read, and TransportError for a compressed answer."""
        request.headers["Accept-Encoding"] = "identity"
        response = await self._inner.handle_async_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise httpx2.TransportError("The answer is compressed, which was not asked for.")
        stream = response.stream
        assert isinstance(stream, httpx2.AsyncByteStream)
        return httpx2.Response(
            response.status_code,
            headers=response.headers,
            stream=_Counted(stream, self),
            extensions=response.extensions,
        )

    def count(self, size: int) -> None:
        """Count bytes that came. Raises TooMuch."""
        self.num_bytes += size
        if self.num_bytes > MOST_BYTES:
            raise TooMuch(f"The tool server sent more than {MOST_BYTES} bytes; a result may have 1 MiB.")

    async def aclose(self) -> None:
        """Close all connections."""
        await self._inner.aclose()


class _Counted(httpx2.AsyncByteStream):
    """The body of one answer."""

    def __init__(self, inner: httpx2.AsyncByteStream, transport: LimitedTransport) -> None:
        self._inner = inner
        self._transport = transport

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._inner:
            self._transport.count(len(piece))
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()


def limited_client(
    headers: dict[str, str] | None = None, timeout: Any = None, auth: httpx2.Auth | None = None
) -> httpx2.AsyncClient:
    """Return a client for one session, in the form that the `mcp` package takes. timeout: replaced by ours."""
    return httpx2.AsyncClient(
        headers=headers,
        auth=auth,
        timeout=httpx2.Timeout(CONNECT_S, read=READ_S),
        transport=LimitedTransport(),
        trust_env=False,
        follow_redirects=False,
    )
