"""Streams wait no longer than they may, on a machine whose steps take a known time."""

import random

import pytest
from scheduler.fake_model import Client, FakeExecutor, make_request, make_scheduler, reference
from scheduler.test_step_cost import MACHINES, Machine

from core.scheduler.scheduler import Scheduler
from core.scheduler.step_cost import work_of

LIMIT = 0.1
BLOCKS = 2048


class Bench:
    """A scheduler with `LIMIT`, on a machine of its own time.

    waits: of each stream, between its tokens.
    hiccup: seconds that the next step takes longer.
    """

    def __init__(self, machine: Machine, *, noise: float = 0.0, **limits: object) -> None:
        self.now = 100.0
        self.hiccup = 0.0
        self.num_stalls_before = 0
        self.waits: list[float] = []
        self.steps: list[float] = []
        self.client = Client()
        self._machine = machine
        self._noise = noise
        self._random = random.Random(5)
        self._last: dict[str, float] = {}
        settings = {"max_stall_s": LIMIT, "max_num_batched_tokens": 2048, "max_model_len": 8000} | limits
        num_blocks = settings.pop("num_blocks", BLOCKS)
        self.scheduler: Scheduler = make_scheduler(num_blocks, clock=lambda: self.now, **settings)
        self.executor = FakeExecutor(num_blocks)

    def add(self, name: str, num_prompt: int, max_tokens: int) -> None:
        self.scheduler.add(make_request(name, [sum(name.encode()) % 40] * num_prompt, max_tokens))

    def step(self) -> None:
        step = self.scheduler.schedule()
        result = self.executor.execute(step.plan)
        seconds = self._machine.seconds(work_of(step.plan, step.num_decodes))
        seconds *= max(0.5, self._random.gauss(1.0, self._noise))
        self.now += seconds + self.hiccup
        self.hiccup = 0.0
        self.steps.append(seconds)
        names = {held: self.executor.held[held].request.request_id for held in result.slots.tolist()}
        self.client.receive(self.scheduler.finish(step, result))
        self.scheduler.check_integrity()
        for name in names.values():
            if name in self._last:
                self.waits.append(self.now - self._last[name])
            self._last[name] = self.now

    def run(self) -> None:
        while self.scheduler.has_unfinished():
            self.step()

    @property
    def num_stalls(self) -> int:
        return self.scheduler.stats().num_stalls - self.num_stalls_before


def learned(machine: Machine, **settings: object) -> Bench:
    """A bench that has served a prompt and its stream alone, and has another stream that goes on."""
    bench = Bench(machine, **settings)
    bench.add("first", 1500, 20)
    bench.run()
    bench.add("stream", 20, 400)
    for _ in range(10):
        bench.step()
    bench.waits.clear()
    bench.num_stalls_before = bench.scheduler.stats().num_stalls
    return bench


SLOW = {"one slow core"}
"""Machines on which thousands of tokens take so many steps that few tests can wait for them."""


@pytest.mark.parametrize(
    "machine",
    [pytest.param(machine, id=name, marks=[pytest.mark.slow] * (name in SLOW)) for name, machine in MACHINES.items()],
)
def test_no_stream_waits_longer_however_long_the_prompts(machine: Machine) -> None:
    bench = learned(machine)
    for name, length in (("long", 3000), ("longer", 4500), ("short", 70)):
        bench.add(name, length, 5)
    num_before = len(bench.steps)
    while not {("long", 0), ("longer", 0), ("short", 0)} <= bench.client.tokens.keys():
        bench.step()
    assert max(bench.waits) <= 1.02 * LIMIT
    assert bench.num_stalls <= 1  # what a second stream costs is learned from the first step that has one
    mixed = bench.steps[num_before:-3]
    if len(mixed) > 5:  # else all of it fits a few steps
        assert sum(mixed) / len(mixed) > 0.75 * LIMIT


def test_with_noise_few_wait_longer_and_each_is_counted() -> None:
    bench = learned(MACHINES["two cores"], noise=0.08)
    for number in range(6):
        bench.add(f"prompt{number}", 800, 30)
    bench.run()
    late = sum(wait > LIMIT for wait in bench.waits)
    assert bench.num_stalls == late
    assert late < 0.05 * len(bench.waits)
    assert max(bench.waits) < 1.4 * LIMIT


def test_a_hiccup_of_the_machine_is_counted_once_for_each_stream() -> None:
    bench = learned(MACHINES["two cores"])
    bench.add("second", 20, 50)
    for _ in range(3):
        bench.step()
    bench.hiccup = 1.0
    bench.step()
    assert bench.num_stalls == 2


def test_a_stream_that_was_preempted_counts_when_it_goes_on() -> None:
    bench = learned(MACHINES["two cores"], num_blocks=400)
    bench.add("other", 1500, 60)
    for _ in range(100):
        bench.step()
    assert bench.scheduler.stats().num_preemptions == 1
    bench.hiccup = 1.0
    bench.run()
    late = sum(wait > LIMIT for wait in bench.waits)
    assert bench.num_stalls == late > 0


def test_a_limit_that_no_step_can_keep_starves_no_prompt() -> None:
    bench = learned(Machine(0.2, 1e-3, 0.0, 1e-3, 0.0))
    bench.add("prompt", 200, 3)
    bench.run()
    assert len(bench.client.tokens["prompt", 0]) == 3
    assert bench.num_stalls == len(bench.waits)


def test_the_tokens_are_those_of_requests_alone() -> None:
    bench = learned(MACHINES["one slow core"])
    bench.add("prompt", 300, 9)
    bench.run()
    request = make_request("prompt", [sum(b"prompt") % 40] * 300, 9)
    assert bench.client.tokens["prompt", 0] == reference(request, 8000)[0]


def test_nobody_waits_no_limit() -> None:
    bench = Bench(MACHINES["one slow core"])
    bench.add("prompt", 1900, 1)
    bench.step()
    assert len(bench.client.tokens["prompt", 0]) == 1
