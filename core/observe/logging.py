"""One line a log record, the same in every process.

Owns: the format and the handler of the loggers `core` and `plugins`. Never does: touch other loggers or the root.
Called by: the command line, the server and the engine process, once each; a library user configures `logging` as usual.
"""

from __future__ import annotations

import logging
import sys

LOGGERS = ("core", "plugins")
HANDLER_NAME = "core-stderr"


def setup_logging(level: int | str = logging.INFO, process: str = "main") -> None:
    """Log to standard error: `11:20:45.123 INFO engine core.engine.core: text`. A second call replaces the first.

    level:   a number or name of the `logging` module, in any case.
    process: what this process is called in each line.
    """
    formatter = logging.Formatter(
        fmt=f"%(asctime)s.%(msecs)03d %(levelname)s {process} %(name)s: %(message)s", datefmt="%H:%M:%S"
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.set_name(HANDLER_NAME)
    handler.setFormatter(formatter)
    for name in LOGGERS:
        logger = logging.getLogger(name)
        for old in [old for old in logger.handlers if old.get_name() == HANDLER_NAME]:
            logger.removeHandler(old)
        logger.addHandler(handler)
        logger.setLevel(level.upper() if isinstance(level, str) else level)
        logger.propagate = False
