"""One client's connection: uvicorn's HTTP protocol with limits.

Owns: the size limit of a request's head, the refusal of input that is too large, too slow or not HTTP, when a
connection counts as busy. Never does: decide which connection is closed (`core_apis.server.connections` does), or look at a
request's meaning. Called by: uvicorn, for every connection; the registry of connections.
"""

from __future__ import annotations

from typing import Any, cast
from urllib.parse import unquote

import httptools
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from core.api.errors import RequestError
from core_apis.errors import error_response
from core_apis.server.connections import Connections

HEADER_OVERHEAD = 4  # bytes: ": " and the end of the line
MAX_PIPELINED = 32  # pipelined requests that wait for the current answer
LAST_REQUEST_SECONDS = 0.1  # for a request that is under way when the server ends


class Connection(HttpToolsProtocol):
    """The HTTP protocol of one connection. Times are seconds of the loop's clock.

    running:       the request that the application answers, or answered last; a pipelined one waits for its turn.
    silent_since:  when the client last sent something, or got the end of an answer.
    reading_since: when the first byte of the incomplete request came; None: there is none.
    refused:       whether further input from the client is dropped.
    unsent:        bytes of answers that the client had not read when the registry last looked.
    """

    def __init__(self, registry: Connections, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.registry = registry
        self.running: RequestResponseCycle | None = None
        self.silent_since = self.loop.time()
        self.reading_since: float | None = None
        self.refused = False
        self.unsent = 0
        self._in_head = False
        self._in_body = False
        self._head_size = 0
        self._unparsed = 0  # bytes of whole reads since the last end of a head or part of a body
        self._problem: RequestError | None = None
        self._last_word = b""  # the serialized refusal, sent after the answers to earlier requests

    @property
    def busy(self) -> bool:
        """Whether an answer is under way: the request is complete, or the application did not wait for all of it."""
        running = self.running
        return (
            running is not None
            and not running.response_complete
            and (running.response_started or not running.more_body)
        )

    def connection_made(self, transport: Any) -> None:
        """Accept the connection, or refuse it if all others are busy."""
        super().connection_made(transport)
        if not self.registry.admit(self):
            message = f"The server has {self.registry.limit} connections that are all busy; try again in a moment."
            self.refuse(RequestError(message, status=503, code="too_many_connections", retry_after=1))
            self.transport.close()
        elif self.registry.is_ending:
            self.shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the application, also when further requests wait for the one that it answers."""
        super().connection_lost(exc)
        self.registry.forget(self)
        self.pipeline.clear()
        self._disconnect_running()

    def data_received(self, data: bytes) -> None:
        """Parse the data; refuse a request that breaks a rule."""
        if self.refused:
            return
        self._unset_keepalive_if_required()
        self.silent_since = self.loop.time()
        if self.reading_since is None:
            self.reading_since = self.silent_since
        self._unparsed += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # The request is served. Anything further would be another protocol (an upgrade), which this server does not
            # speak.
            self.refused = True
            self.cycle.keep_alive = False
        except httptools.HttpParserError:
            message = "The request is not valid HTTP/1.1."
            self.refuse(self._problem or RequestError(message, code="malformed_request"))
        else:
            if self._unparsed > self.registry.max_header_size and (self._in_head or self._in_body):
                self.refuse(self._too_large())
        self.registry.settle(self)

    def on_message_begin(self) -> None:
        """Note the first byte of a request."""
        super().on_message_begin()
        if self.reading_since is None:
            self.reading_since = self.silent_since
        self._in_head = True
        self._head_size = self._unparsed = 0

    def on_url(self, url: bytes) -> None:
        """Append a part of the request target."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Append a header. Trailers, which come after the body, are no headers and are dropped."""
        self._count(len(name) + len(value) + HEADER_OVERHEAD)
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Check the head; start the application, or queue the request after the one that is being answered."""
        self._in_head, self._unparsed = False, 0
        self._check_head()
        super().on_headers_complete()
        self._in_body = True
        if self.registry.is_ending:
            self.cycle.keep_alive = False
        if not self.pipeline:
            self.running = self.cycle
        elif len(self.pipeline) > MAX_PIPELINED:
            message = (
                f"More than {MAX_PIPELINED} requests wait on this connection; send fewer at once, and the others again."
            )
            self._problem = RequestError(message, status=429, code="too_many_pipelined", retry_after=1)
            raise self._problem

    def on_body(self, body: bytes) -> None:
        """Pass on a part of the body."""
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Note the last byte of the request."""
        self._in_body, self._unparsed, self.reading_since = False, 0, None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Note the last byte of the answer.

        A request that the client has begun to send meanwhile gets the full time limit from now.
        """
        # Read first: the base class starts this request and removes it from the pipeline.
        upcoming = self.pipeline[-1][0] if self.pipeline else None
        super().on_response_complete()
        if self._last_word and upcoming is None and not self.transport.is_closing():
            self._write_last(self._last_word)
            self._last_word = b""
        self.running = upcoming or self.running
        self.silent_since = self.loop.time()
        if self.reading_since is not None:
            self.reading_since = self.silent_since
        self.registry.settle(self)

    def shutdown(self) -> None:
        """Close as the server ends: after the answer, if there is to be one.

        What a client has sent may not be read yet, and would be lost if the connection were closed at once.
        """
        if self.cycle is None or self.cycle.response_complete:
            self.loop.call_later(LAST_REQUEST_SECONDS, self._close_if_silent)
        else:
            self.cycle.keep_alive = False

    def _close_if_silent(self) -> None:
        """Close unless an answer is under way, which closes by itself; refuse half a request."""
        if self.transport.is_closing() or not (self.cycle is None or self.cycle.response_complete):
            return
        if self.reading_since is None or self.refused:
            self.transport.close()
            return
        message = (
            "The server is shutting down and has got a part of the request only; send it again, to another server."
        )
        self.refuse(RequestError(message, status=503, code="server_draining", retry_after=1))
        self.loop.call_later(LAST_REQUEST_SECONDS, self.transport.close)

    def refuse(self, error: RequestError) -> None:
        """Answer with `error` and close, after the answers to complete requests before it. Nothing more is read."""
        self.refused = True
        self.registry.note(error.code or "")
        self._unset_keepalive_if_required()
        if self.busy:
            self._refuse_later(error)
            return
        # An answer may come before the whole body; a refusal would then be a second answer to the same request.
        answered = self._in_body and self.cycle.response_complete
        self._disconnect_running()
        if answered:
            self.transport.close()
            return
        self._write_last(self._raw(error))

    def _refuse_later(self, error: RequestError) -> None:
        """Refuse the request that is being read once the requests before it are answered."""
        assert self.running is not None
        # Its own answer is under way, and there cannot be a second one.
        if self.cycle is self.running and self.cycle.more_body:
            self.running.keep_alive = False
            return
        if self.pipeline and self.pipeline[0][0] is self.cycle and self.cycle.more_body:
            self.pipeline.popleft()
        self._last_word = self._raw(error)

    def _write_last(self, answer: bytes) -> None:
        """Write the last answer on this connection."""
        self.transport.write(answer)
        # If the connection closed at once, a client that is still sending would lose the answer.
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()

    def _check_head(self) -> None:
        """Raise RequestError where proxies and servers could disagree about a request's host or its end."""
        num_hosts = 0
        is_chunked = False
        for name, _ in self.headers:
            num_hosts += name == b"host"
            is_chunked = is_chunked or name == b"transfer-encoding"
        if self.parser.get_http_version() == "1.0":
            if is_chunked:
                message = "The request is HTTP/1.0 with Transfer-Encoding; expected Content-Length, or HTTP/1.1."
                self._problem = RequestError(message, code="malformed_request")
                raise self._problem
            if not num_hosts:
                return
        if num_hosts != 1:
            message = f"The request has {num_hosts} Host headers; expected one."
            self._problem = RequestError(message, code="malformed_request")
            raise self._problem

    def _count(self, size: int) -> None:
        self._head_size += size
        if self._head_size > self.registry.max_header_size:
            self._problem = self._too_large()
            raise self._problem

    def _too_large(self) -> RequestError:
        limit = self.registry.max_header_size
        message = f"The request's line and headers have more than {limit} bytes (--max-header-size); send less."
        return RequestError(message, status=431, code="headers_too_large")

    def _disconnect_running(self) -> None:
        if self.running is not None and not self.running.response_complete:
            self.running.disconnected = True
            self.running.message_event.set()

    def _known_scope(self) -> Scope | None:
        """Return the scope of the latest request, as far as it was received; None before the first one."""
        scope = cast("Scope | None", self.scope)
        if scope is None or "path" in scope:
            return scope
        path, _, _ = self.url.partition(b"?")
        return {**scope, "method": "", "path": unquote(path.decode("latin-1"))}

    def _raw(self, error: RequestError) -> bytes:
        answer = error_response(error, {"connection": "close"}, self._known_scope())
        headers = [*self.server_state.default_headers, *answer.raw_headers]
        lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
        return STATUS_LINE[answer.status_code] + lines + b"\r\n" + bytes(answer.body)
