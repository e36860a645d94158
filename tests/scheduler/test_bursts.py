"""Equal prompts that arrive together, in a closed loop, on a machine whose steps take a known time."""

import math

import pytest
from scheduler.fake_model import FakeExecutor, make_request, make_scheduler
from scheduler.test_step_cost import MACHINES

from core.scheduler.step_cost import work_of

CLIENTS, ROUNDS, TOKENS_IN, TOKENS_OUT = 8, 3, 64, 24


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[math.ceil(share * len(values)) - 1]


def served(machine: str, weight: float, mixed: int = 24) -> tuple[list[float], list[float], float]:
    """Seconds to each first token, seconds between tokens, and seconds until all are answered.

    Each client sends its next prompt as soon as its last one is answered.
    """
    now, born, last = 0.0, {}, {}
    firsts: list[float] = []
    gaps: list[float] = []
    limits = {"max_num_mixed_batched_tokens": mixed, "max_num_batched_tokens": 2048, "max_num_seqs": 16}
    scheduler = make_scheduler(512, queued_prompts_weight=weight, **limits)
    executor = FakeExecutor(512)
    todo = [f"r{number}" for number in range(CLIENTS * ROUNDS)]

    def send() -> None:
        if todo:
            name = todo.pop()
            born[name] = now
            scheduler.add(make_request(name, [len(todo)] * TOKENS_IN, TOKENS_OUT))

    for _ in range(CLIENTS):
        send()
    while scheduler.has_unfinished():
        step = scheduler.schedule()
        result = executor.execute(step.plan)
        now += MACHINES[machine].seconds(work_of(step.plan, step.num_decodes))
        names = [executor.held[slot].request.request_id for slot in result.slots.tolist()]
        outputs = scheduler.finish(step, result)
        for name in names:
            if name in last:
                gaps.append(now - last[name])
            else:
                firsts.append(now - born[name])
            last[name] = now
        for output in outputs.records:
            if output.finish_reason is not None:
                send()
    assert len(firsts) == CLIENTS * ROUNDS
    return firsts, gaps, now


@pytest.mark.parametrize("machine", MACHINES)
def test_the_last_of_equal_prompts_waits_less_and_streams_do_not_stall(machine: str) -> None:
    firsts, gaps, seconds = served(machine, weight=4.0)
    firsts_before, gaps_before, seconds_before = served(machine, weight=0.0)
    assert max(firsts) < 0.85 * max(firsts_before)
    assert percentile(gaps, 0.95) < 0.9 * percentile(gaps_before, 0.95)
    assert seconds < seconds_before


@pytest.mark.parametrize("machine", MACHINES)
def test_the_weight_moves_along_the_curve(machine: str) -> None:
    """A larger weight never makes the last prompt of the first burst wait longer."""
    lasts = [max(served(machine, weight)[0]) for weight in (0.0, 1.0, 2.0, 4.0)]
    assert lasts == sorted(lasts, reverse=True)
    assert lasts[-1] < lasts[0]


@pytest.mark.parametrize("machine", ["two cores", "one slow core"])
def test_a_smaller_mixed_step_is_a_shorter_wait_and_a_later_last_prompt(machine: str) -> None:
    firsts, gaps, _ = served(machine, weight=2.0, mixed=12)
    firsts_before, gaps_before, _ = served(machine, weight=2.0, mixed=24)
    assert percentile(gaps, 0.95) < percentile(gaps_before, 0.95)
    assert max(firsts) > max(firsts_before)
