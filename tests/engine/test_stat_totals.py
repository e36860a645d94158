"""Totals across the deaths of engines."""

from core.api.stats import SchedulerStats
from core_frontend.stat_totals import StatTotals


def test_counters_of_every_form_go_on_and_states_begin_again() -> None:
    totals = StatTotals()
    first = SchedulerStats(num_running=3, num_preemptions=2, spec_accepted_by_place=[5, 1], spec_off="It failed.")
    first.spec_steps_on = {3: 4}
    first.spec_draft_seconds = 0.5
    totals.take(first)
    totals.end_engine(num_waiting=1)
    assert (totals.latest.num_running, totals.latest.spec_off) == (0, "")
    second = SchedulerStats(num_running=1, num_preemptions=1, spec_accepted_by_place=[2, 0, 7])
    second.spec_steps_on = {3: 1, 2: 6}
    totals.take(second)
    found = totals.latest
    assert (found.num_running, found.num_preemptions, found.spec_draft_seconds) == (1, 3, 0.5)
    assert found.spec_accepted_by_place == [7, 1, 7]
    assert found.spec_steps_on == {3: 5, 2: 6}
