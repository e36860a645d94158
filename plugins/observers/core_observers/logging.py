"""The log of processes with direct users or clients.

Owns: the libraries of a server that log in the server's form, and the filter of its access log. Never does: format
(`core.logging_setup` does). Called by: the command line and the server, once each; a library user configures `logging`
as usual.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from core import logging_setup
from core_observers.log_repeats import RepeatFilter
from core_observers.page_looks import PageLooks

SERVER_LIBRARIES = ("asyncio", "uvicorn.error", "uvicorn.access", "opentelemetry")
"""Loggers of the libraries that a server's process uses; their levels are left unchanged."""


def setup_logging(
    level: int | str = logging.INFO,
    process: str = "main",
    libraries: Sequence[str] = (),
    config: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Set up logging as `core.logging_setup.setup_logging` does, but drop lines about the page's own successful
    requests and about floods of one record.
    """
    logging_setup.setup_logging(level, process, libraries, config, [PageLooks(), RepeatFilter()])
