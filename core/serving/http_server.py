"""uvicorn with our settings.

Owns: the HTTP server's settings. Never does: signals, or starting an engine. Called by: `core.serving.launch`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from core.api.config import ServerConfig

PATIENCE_SECONDS = 10  # a backstop; the launcher ends streams earlier


class HttpServer(uvicorn.Server):
    """uvicorn without signal handlers of its own."""

    def __init__(self, app: FastAPI, server: ServerConfig) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="httptools",
                ws="none",
                lifespan="off",
                log_level=server.uvicorn_log_level,
                access_log=not server.disable_uvicorn_access_log,
                ssl_keyfile=server.ssl_keyfile,
                ssl_certfile=server.ssl_certfile,
                timeout_graceful_shutdown=PATIENCE_SECONDS,
                server_header=False,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the caller."""
        yield
