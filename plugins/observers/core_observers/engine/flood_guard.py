"""The filter against floods in the log of an engine process.

Owns: adding it. Never does: log, or touch the logging of a program that has an engine in its own process, which has no handler
of ours. Called by: the engine core, which makes it.
"""

from __future__ import annotations

import logging
from typing import Self

from core.engine.observer import EngineObserver, EngineStart
from core.logging_setup import HANDLER_NAME, LOGGERS
from core_observers.log_repeats import RepeatFilter


class FloodGuard(EngineObserver):
    """The filter of one engine process; there is nothing to accompany after that."""

    order = 0

    @classmethod
    def open(cls, start: EngineStart) -> Self | None:
        """Add the filter to our handler, if this process has one."""
        for handler in logging.getLogger(LOGGERS[0]).handlers:
            if handler.get_name() == HANDLER_NAME and not any(type(each) is RepeatFilter for each in handler.filters):
                handler.addFilter(RepeatFilter())
        return None
