"""The periodic log line: rates, only while there are steps."""

import logging

import msgspec
import pytest

from core.api.messages import EngineOutput, EngineOutputs
from core.api.stats import SchedulerStats
from core_frontend.group.member import Member
from core_frontend.group.stats_log import GroupStatsLog
from core_frontend.group.totals import GroupTotals
from core_frontend.stats_log import StatsLog
from tests.engine.fakes import make_config


def test_a_line_for_each_interval(caplog: pytest.LogCaptureFixture) -> None:
    stats = SchedulerStats(num_running=2, num_waiting=1, kv_cache_usage=0.5, prefix_queries=10, prefix_hits=5)
    message = EngineOutputs(0, [EngineOutput("a", 0, 0, [1, 2])], stats)
    with caplog.at_level(logging.INFO, logger="core_frontend.stats_log"):
        quiet = StatsLog(interval_s=1000.0)
        quiet.record(message)
        assert caplog.messages == []
        StatsLog(interval_s=0.0).record(message)
    assert "2 running, 1 waiting, KV cache 50.0% used, prefix hits 50.0%" in caplog.messages[0]


def lines_of(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, *, aggregate: bool) -> list[str]:
    """What a group of two engines, numbered from 4, logs when each has made a step of its own."""
    config = msgspec.structs.replace(
        make_config(), data_parallel_size=2, data_parallel_rank=4, aggregate_stats_log=aggregate
    )
    members = [Member(index=index, source=None, connected=None) for index in range(2)]
    clock = [100.0]
    monkeypatch.setattr("core_frontend.stats_log.time.monotonic", lambda: clock[0])
    log = GroupStatsLog(config, GroupTotals(members))
    steps = [
        (0, SchedulerStats(num_running=2, num_waiting=1, kv_cache_usage=0.5, prefix_queries=10, prefix_hits=5), 30),
        (1, SchedulerStats(num_running=3, num_waiting=4, kv_cache_usage=0.1, prefix_queries=30, prefix_hits=0), 10),
    ]
    with caplog.at_level(logging.INFO, logger="core_frontend.stats_log"):
        for late in (False, True):
            for engine, stats, number in steps:
                members[engine].totals.take(stats)
                clock[0] = 120.0 if late and (engine == 1 or not aggregate) else clock[0]
                log.record(EngineOutputs(0, [EngineOutput("a", 0, 0, [1] * number)], stats), engine)
    return caplog.messages


def test_each_engine_of_a_group_has_a_line(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lines_of(caplog, monkeypatch, aggregate=False) == [
        "Engine 4: 3.0 tokens/s generated, 2 running, 1 waiting, KV cache 50.0% used, prefix hits 50.0%",
        "Engine 5: 1.0 tokens/s generated, 3 running, 4 waiting, KV cache 10.0% used, prefix hits 0.0%",
    ]


def test_the_line_of_all_engines_adds_them_up(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lines_of(caplog, monkeypatch, aggregate=True) == [
        "All engines: 4.0 tokens/s generated, 5 running, 5 waiting, KV cache 30.0% used, prefix hits 12.5%"
    ]
