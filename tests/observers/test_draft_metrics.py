"""What a scrape tells of speculation."""

from core.api.stats import SchedulerStats
from core_observers.families.draft_metrics import drafts


def test_an_engine_without_speculation_tells_nothing() -> None:
    assert list(drafts("core:", "m", SchedulerStats())) == []


def test_drafts_are_told_by_place_by_number_and_by_cause() -> None:
    stats = SchedulerStats(
        spec_accepted_by_place=[7, 2],
        spec_draft_seconds=0.5,
        spec_steps_on={2: 9, 1: 3},
        spec_steps_off={"cost": 40},
        spec_off="It failed.",
    )
    samples = [sample for family in drafts("core:", "m", stats) for sample in family.samples]
    told = {(sample.name, *list(sample.labels.values())[1:]): sample.value for sample in samples}
    assert told == {
        ("core:spec_decode_off", "It failed."): 1,
        ("core:spec_decode_draft_seconds_total",): 0.5,
        ("core:spec_decode_num_accepted_tokens_per_pos_total", "0"): 7,
        ("core:spec_decode_num_accepted_tokens_per_pos_total", "1"): 2,
        ("core:spec_decode_steps_total", "1"): 3,
        ("core:spec_decode_steps_total", "2"): 9,
        ("core:spec_decode_steps_without_drafts_total", "cost"): 40,
    }
