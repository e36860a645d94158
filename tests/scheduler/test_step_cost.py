"""The learned cost of a step against machines whose cost is known."""

import random
from dataclasses import dataclass

import numpy as np
import pytest

from core.api.step_plan import StepPlan
from core.scheduler.step_cost import StepCost, StepWork, work_of


@dataclass
class Machine:
    """Seconds: of a step, and of each thing in it."""

    step: float
    decode: float
    decode_key: float
    prompt_token: float
    prompt_key: float

    def seconds(self, work: StepWork) -> float:
        prompts = self.prompt_token * work.num_prompt_tokens + self.prompt_key * work.prompt_keys
        return self.step + self.decode * work.num_decodes + self.decode_key * work.context_tokens + prompts


MACHINES = {
    "two cores": Machine(8e-3, 4e-4, 3e-7, 7e-4, 5e-8),
    "one slow core": Machine(3e-2, 5e-3, 2e-6, 4e-3, 1e-7),
    "an accelerator": Machine(2e-3, 1e-5, 1e-8, 2e-5, 1e-9),
}


def prompt(num_tokens: int, start: int = 0) -> StepWork:
    return StepWork(num_tokens, 0, 0, num_tokens * (2 * start + num_tokens) // 2)


def taught(machine: Machine, *, outliers: float = 0.0, seed: int = 0) -> StepCost:
    """A model that has seen a prompt and one stream: what the first request of an engine shows it."""
    noise = random.Random(seed)
    cost = StepCost()

    def see(work: StepWork) -> None:
        seconds = machine.seconds(work) * noise.gauss(1.0, 0.05)
        if noise.random() < outliers:
            seconds *= 20.0
        cost.observe(work, seconds)

    for start in range(0, 2048, 512):
        see(prompt(512, start))
    for length in range(2048, 2248):
        see(StepWork(0, 1, length))
    return cost


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_a_step_like_those_seen_is_predicted(machine: Machine) -> None:
    cost = taught(machine)
    alone = StepWork(0, 1, 2300)
    mixed = StepWork(64, 1, 2300, 64 * 32)
    assert cost.predict(*alone) == pytest.approx(machine.seconds(alone), rel=0.1)
    assert cost.predict(*mixed) == pytest.approx(machine.seconds(mixed), rel=0.15)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("start", [0, 4000])
def test_a_chunk_fits_the_time_and_uses_most_of_it(machine: Machine, start: int) -> None:
    cost = taught(machine)
    stream = StepWork(0, 1, 2300)
    limit = 12 * machine.seconds(stream)
    chunk = cost.fitting_chunk(start, limit - cost.predict(*stream))
    first = prompt(chunk, start)
    taken = machine.seconds(StepWork(chunk, 1, 2300, first.prompt_keys))
    assert 0.6 * limit < taken < 1.05 * limit


def test_a_few_outliers_change_nothing_and_a_slower_machine_is_noticed() -> None:
    machine = MACHINES["two cores"]
    alone = StepWork(0, 1, 2300)
    cost = taught(machine, outliers=0.02)
    assert cost.predict(*alone) == pytest.approx(machine.seconds(alone), rel=0.25)
    for _ in range(20):
        cost.observe(alone, 2.0 * machine.seconds(alone))
    assert cost.predict(*alone) == pytest.approx(2.0 * machine.seconds(alone), rel=0.1)


def test_the_margin_covers_most_steps() -> None:
    noise = random.Random(1)
    cost = StepCost()
    work = StepWork(0, 4, 4000)
    late = 0
    for number in range(2000):
        seconds = 0.01 * noise.lognormvariate(0.0, 0.2)
        if number >= 1000:
            late += seconds > cost.predict(*work) * cost.margin
        cost.observe(work, seconds)
    assert 20 < late < 90


def test_nothing_fits_before_anything_was_seen() -> None:
    cost = StepCost()
    assert cost.predict(100, 1, 1000) == 0.0
    assert cost.fitting_chunk(0, 1.0) == 0
    cost.observe(StepWork(0, 1, 10), 0.0)
    assert cost.num_observed == 0


def test_the_size_of_a_plan() -> None:
    plan = StepPlan()
    plan.slots = np.arange(4, dtype=np.int32)
    plan.query_lens = np.array([1, 3, 10, 100], np.int32)
    plan.num_computed = np.array([50, 70, 0, 1000], np.int32)
    plan.total_num_tokens = 114
    assert work_of(plan, 2) == StepWork(110, 4, 120, 10 * 5 + 100 * 1050)
    assert work_of(plan, 4) == StepWork(0, 114, 1120)
