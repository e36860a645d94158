"""The page of metrics tells of a proposer that was switched off."""

import asyncio

from core.api.stats import SchedulerStats
from core_observers.metrics import ServerMetrics


def page(stats):
    metrics = ServerMetrics("tiny", lambda: stats)
    return asyncio.run(metrics.render()).decode()


def test_a_proposer_that_is_off_is_a_metric_with_its_reason():
    reason = "speculative plugin 'odd' (odd-package 1): no answer within 5 s."
    line = f'core:spec_decode_off{{model_name="tiny",reason="{reason}"}} 1.0'
    assert line in page(SchedulerStats(spec_off=reason)).splitlines()
    assert "spec_decode_off" not in page(SchedulerStats())
