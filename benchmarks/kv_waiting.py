"""Time to plan a step while sequences wait for keys and values that are being loaded.

Run: `python -m benchmarks.kv_waiting [--running 64,256] [--waiting 1000] [--steps 400]`. Prints medians of this thread's
processor time in microseconds, so that other programs of the machine do not count: of a step (schedule and finish) in steady
decode without and with sequences that wait, in turns, and of the steps in which the sequences step aside, whose prompts of
8,000 tokens a thread hashes.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from functools import partial

import numpy as np

from core.api.config import SchedulerConfig
from core.api.kv_load import KVLoad
from core.api.kv_transfer import PrefixKey
from core.api.messages import EngineRequest
from core.api.sampling_params import SamplingParams
from core.api.step_plan import StepResult
from core.kv import loads
from core.kv.connector import KVConnector
from core.kv.connectors import KVConnectors
from core.kv.manager import KVManager
from core.scheduler.scheduler import Scheduler
from core_policies.fcfs.policy import FcfsPolicy

BLOCK_SIZE = 16
SHORT, LONG = 200, 8000


class Place(KVConnector):
    """Seems to have every page of prompts that wait, and never sends one. num_loads: loads that have begun."""

    num_loads = 0

    def can_load(self) -> bool:
        """It can."""
        return True

    def may_load(self, group: int, key: PrefixKey) -> bool:
        """Whether the block is the first one of a prompt that is to wait."""
        return key.payload[:4] != b"\0\0\0\0"

    def start_load(self, load: KVLoad) -> None:
        """Count a load."""
        self.num_loads += 1


def make_request(number: int, length: int, first: int, num_tokens: int) -> EngineRequest:
    """Return a request whose prompt begins with `first`."""
    params = SamplingParams(max_tokens=num_tokens)
    prompt = [first, number, *range(length)]
    return EngineRequest(f"r{number}", 0, prompt, params, seed=1, stop_token_ids=[2], handle=number)


def timed_step(scheduler: Scheduler) -> float:
    """Return the processor's microseconds of one step."""
    start = time.thread_time()
    step = scheduler.schedule()
    planned = time.thread_time()
    plan = step.plan
    done = plan.num_computed + plan.query_lens >= SHORT + 2
    result = StepResult(plan.slots[done], np.full(int(done.sum()), 7, np.int32))
    answered = time.thread_time()
    scheduler.finish(step, result)
    return (planned - start + time.thread_time() - answered) * 1e6


def make(num_running: int, num_tokens: int) -> tuple[Scheduler, Place]:
    """Return a scheduler with so many sequences in decode, and the place where others' pages seem to be.

    No load is ever late.
    """
    place = Place()
    num_blocks = num_running * ((SHORT + num_tokens) // BLOCK_SIZE + 2) + 2000
    make_kv = partial(KVManager, num_blocks, BLOCK_SIZE, connectors=KVConnectors([place]))
    config = SchedulerConfig(max_num_seqs=num_running + 8, max_num_batched_tokens=1 << 16, max_model_len=LONG + 1000)
    scheduler = Scheduler(config, make_kv, FcfsPolicy())
    for number in range(num_running):
        scheduler.add(make_request(number, SHORT, 0, num_tokens))
    timed_step(scheduler)
    assert scheduler.stats().num_running == num_running
    return scheduler, place


def measure(num_running: int, num_waiting: int, num_steps: int) -> dict[str, float]:
    """Return medians in microseconds: `plain`, `waiting`, and `aside`."""
    num_tokens = 4 * num_steps + num_waiting
    plain, _ = make(num_running, num_tokens)
    loaded, place = make(num_running, num_tokens)
    for number in range(num_waiting):
        loaded.add(make_request(num_running + number, LONG, 1, 1))
    aside = []
    while place.num_loads < num_waiting:
        aside.append(timed_step(loaded))
        time.sleep(0.002)  # an executor computes meanwhile, and lets the thread hash
    times: dict[str, list[float]] = {"plain": [], "waiting": []}
    for _ in range(num_steps):
        times["plain"].append(timed_step(plain))
        times["waiting"].append(timed_step(loaded))
    found = {name: statistics.median(values) for name, values in times.items()}
    return {**found, "aside": statistics.median(aside), "aside_max": max(aside)}


def main() -> None:
    """Print one line for each number of running sequences."""
    loads.MAX_LOAD_S = 3600.0
    gc.disable()  # as an engine does
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--running", default="64,256")
    parser.add_argument("--waiting", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    for running in map(int, options.running.split(",")):
        found = measure(running, options.waiting, options.steps)
        more = found["waiting"] / found["plain"] - 1
        print(
            f"{running} running: {found['plain']:.0f} us a step, {found['waiting']:.0f} with {options.waiting} waiting "
            f"({more:+.1%}); while they step aside {found['aside']:.0f}, at most {found['aside_max']:.0f}"
        )


if __name__ == "__main__":
    main()
