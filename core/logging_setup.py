"""The setup of logging: one line per record, in the same format in every process.

Owns: the format and the handler for the loggers of our own packages, and for libraries that a process names; lines in that
format without a logger.
Never does: touch other loggers or the root otherwise.
Called by: the engine process, and `core_observers.logging` for all others; a library user configures `logging` as usual.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from core.api.errors import UserError
from core.own_packages import OWN

LOGGERS = OWN
HANDLER_NAME = "core-stderr"


def setup_logging(
    level: int | str = logging.INFO,
    process: str = "main",
    libraries: Sequence[str] = (),
    config: Mapping[str, Any] = MappingProxyType({}),
    filters: Sequence[logging.Filter] = (),
) -> None:
    """Log to standard error: `11:20:45.123 INFO engine core.engine.core: text`. A second call replaces the first.

    level:     a number or name of the `logging` module, in upper or lower case.
    process:   name of this process in each line.
    libraries: loggers of other packages that use our format, at levels of their own.
    config:    the user's configuration for `logging.config.dictConfig`; its settings of a logger replace those made here.
               Raises UserError when it cannot be used.
    filters:   filters of records.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.set_name(HANDLER_NAME)
    handler.setFormatter(_formatter(process))
    for each in filters:
        handler.addFilter(each)
    level = level.upper() if isinstance(level, str) else level
    for name in (*LOGGERS, *libraries):
        logger = logging.getLogger(name)
        for old in list(logger.handlers):
            if old.get_name() == HANDLER_NAME:
                logger.removeHandler(old)
        logger.addHandler(handler)
        logger.propagate = False
        if name in LOGGERS:
            logger.setLevel(level)
    if config:
        _apply(config)


def log_line(text: str, level: int = logging.INFO, process: str = "main") -> str:
    """Format a line as in the log, for output before a process has set up its logging."""
    record = logging.LogRecord("core", level, __file__, 0, text, (), None)
    return _formatter(process).format(record)


def _formatter(process: str) -> logging.Formatter:
    return logging.Formatter(
        fmt=f"%(asctime)s.%(msecs)03d %(levelname)s {process} %(name)s: %(message)s", datefmt="%H:%M:%S"
    )


def _apply(config: Mapping[str, Any]) -> None:
    import logging.config as configuration

    try:
        configuration.dictConfig(dict(config))
    except (ValueError, TypeError, AttributeError, ImportError) as error:
        cause = error.__cause__ or error
        raise UserError(f"--log-config-file: {error} ({cause}); see logging.config.dictConfig.") from None
