"""uvicorn with our settings.

Owns: the HTTP server's settings, the clock of its connections. Never does: signals, or starting an engine. Called by:
`core_apis.server.service`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import uvicorn
from fastapi import FastAPI

from core_apis.server.connection import Connection
from core_apis.server.connections import Connections
from core_apis.server.tls_refresh import TlsRefresh
from core_config.served.server_config import ServerConfig

PATIENCE_SECONDS = 10  # a backstop; the launcher ends streams earlier
SWEEP_TICKS = 5  # of uvicorn's 0.1 s
REFRESH_TICKS = 10
TAKE_SECONDS = 0.02  # until the loop has closed its listeners; uvicorn waits 0.1 s before it looks for connections
ACCEPTS = 16  # connections that are accepted in one iteration of the event loop

logger = logging.getLogger(__name__)


class HttpServer(uvicorn.Server):
    """A uvicorn server without its own signal handlers, and with limits for connections."""

    def __init__(self, app: FastAPI, server: ServerConfig) -> None:
        limits = server.limits
        self.clients = Connections(limits)
        self._settings = server
        self._tls: TlsRefresh | None = None
        super().__init__(
            uvicorn.Config(
                app,
                http=cast(Any, partial(Connection, self.clients)),
                ws="none",
                lifespan="off",
                workers=1,
                log_level=server.uvicorn_log_level,
                access_log=not server.disable_uvicorn_access_log,
                ssl_keyfile=server.ssl_keyfile,
                ssl_certfile=server.ssl_certfile,
                ssl_ca_certs=server.ssl_ca_certs,
                ssl_cert_reqs=server.ssl_cert_reqs,
                ssl_ciphers=server.ssl_ciphers,
                log_config=None,  # `setup_logging` gives its loggers our form
                timeout_graceful_shutdown=PATIENCE_SECONDS,
                timeout_keep_alive=math.ceil(limits.keep_alive_timeout),
                server_header=False,
                # Clients choose the content of these messages, and could write anything into the log.
                proxy_headers=False,
            )
        )

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve on `sockets` until `should_exit`."""
        listening: list[socket.socket] = []
        for each in sockets or ():
            listening.append(each)
            listening += _copies(each)
        await super().serve(listening)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End in good order. Clients that have connected by now still get answers.

        Closing the listener resets the connections that the system has accepted and the loop has not: at each stop under
        load nearly every client lost a request to that.
        """
        self.clients.is_ending = True
        last = sockets[0].dup() if sockets else None
        coming = asyncio.ensure_future(self._take_the_rest(last))
        await super().shutdown(sockets)
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)

    async def _take_the_rest(self, listener: socket.socket | None) -> None:
        """Serve the connections that nobody has accepted when the loop has closed its own listeners; close the last one."""
        if listener is None:
            return
        with listener:
            await asyncio.sleep(TAKE_SECONDS)
            waiting = _accept_all(listener)
        loop = asyncio.get_running_loop()
        protocol = partial(
            cast(Any, self.config.http_protocol_class),
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
            _loop=loop,
        )
        taken = [loop.connect_accepted_socket(protocol, each, ssl=self.config.ssl) for each in waiting]
        # A client that leaves during the handshake of TLS gets no answer.
        await asyncio.gather(*taken, return_exceptions=True)

    async def on_tick(self, counter: int) -> bool:
        """Also close silent connections on the tick of uvicorn's clock."""
        if counter % SWEEP_TICKS == 0:
            self.clients.sweep(asyncio.get_running_loop().time())
        if self._settings.enable_ssl_refresh and counter % REFRESH_TICKS == 0:
            self._refresh()
        return await super().on_tick(counter)

    def _refresh(self) -> None:
        if self._tls is not None:
            self._tls.check()
        elif self.config.ssl is not None:
            self._tls = TlsRefresh(self._settings, self.config.ssl)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the caller."""
        yield


def _accept_all(listener: socket.socket) -> list[socket.socket]:
    """Accept the connections that wait at `listener`, which does not block."""
    accepted: list[socket.socket] = []
    try:
        while True:
            accepted.append(listener.accept()[0])
    except BlockingIOError:
        return accepted
    except OSError as error:
        logger.warning("Clients that connect while the server ends get no answer: %s.", error)
        return accepted


def _copies(listener: socket.socket) -> list[socket.socket]:
    """Return duplicates of `listener`.

    uvloop accepts one connection per iteration from each listener, so with a single one a burst of clients would wait
    for as many iterations.
    """
    return [listener.dup() for _ in range(ACCEPTS - 1)]
