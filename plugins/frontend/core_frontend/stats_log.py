"""The line that a busy engine logs every few seconds.

Owns: `StatsLog`. Never does: export metrics. Called by: `AsyncEngine` with each step's outputs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from core.api.messages import EngineOutputs
from core.api.stats import SchedulerStats

logger = logging.getLogger(__name__)

INTERVAL_S = 10.0


class StatsLog:
    """The counter of tokens that logs rates at most every `interval_s` seconds, and only while there are steps.

    name:  of what is logged, such as `Engine 1: `.
    stats: returns the state that is logged; None: that of the latest message.
    """

    def __init__(
        self, interval_s: float = INTERVAL_S, name: str = "", stats: Callable[[], SchedulerStats] | None = None
    ) -> None:
        self._name = name
        self._stats = stats
        self._interval_s = interval_s
        self._since = time.monotonic()
        self._num_tokens = 0

    def record(self, message: EngineOutputs) -> None:
        """Count one step; log a line if the interval is over."""
        self._num_tokens += message.num_tokens
        elapsed = time.monotonic() - self._since
        if elapsed < self._interval_s:
            return
        stats = message.stats if self._stats is None else self._stats()
        hit_rate = stats.prefix_hits / stats.prefix_queries if stats.prefix_queries else 0.0
        logger.info(
            "%s%.1f tokens/s generated, %d running, %d waiting, KV cache %.1f%% used, prefix hits %.1f%%",
            self._name,
            self._num_tokens / elapsed,
            stats.num_running,
            stats.num_waiting,
            100.0 * stats.kv_cache_usage,
            100.0 * hit_rate,
        )
        self._since, self._num_tokens = time.monotonic(), 0
