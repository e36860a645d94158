"""The periodic log line: rates, only while there are steps."""

import logging

import pytest

from core.api.messages import EngineOutput, EngineOutputs
from core.api.stats import SchedulerStats
from core_frontend.stats_log import StatsLog


def test_a_line_for_each_interval(caplog: pytest.LogCaptureFixture) -> None:
    stats = SchedulerStats(num_running=2, num_waiting=1, kv_cache_usage=0.5, prefix_queries=10, prefix_hits=5)
    message = EngineOutputs(0, [EngineOutput("a", 0, 0, [1, 2])], stats)
    with caplog.at_level(logging.INFO, logger="core_frontend.stats_log"):
        quiet = StatsLog(interval_s=1000.0)
        quiet.record(message)
        assert caplog.messages == []
        StatsLog(interval_s=0.0).record(message)
    assert "2 running, 1 waiting, KV cache 50.0% used, prefix hits 50.0%" in caplog.messages[0]
