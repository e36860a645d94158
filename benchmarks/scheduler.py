"""Time of the scheduler and the KV manager alone: one step of schedule and update in steady decode, no model.

Run: `python benchmarks/scheduler.py [--running 32,256,1024] [--steps 400]`. Prints microseconds a step. `crossing` is the
median of the steps in which all sequences take a block at once. An executor that answers with one token a sequence is
prepared outside of the measured time.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time

from core.api.config import CacheConfig, SchedulerConfig
from core.api.messages import EngineRequest
from core.api.sampling_params import SamplingParams
from core.api.step_plan import StepPlan, StepResult
from core.scheduler.scheduler import Scheduler

PROMPT_TOKENS = 1000
BLOCK_SIZE = 16


def answer(plan: StepPlan) -> StepResult:
    """One token for each sequence."""
    return StepResult(token_ids={key: [7] for key in plan.num_scheduled})


def make_scheduler(num_running: int, num_steps: int) -> Scheduler:
    """A scheduler with `num_running` sequences that have just finished their prompts."""
    length = PROMPT_TOKENS + num_steps + 100
    limits = SchedulerConfig(
        max_num_seqs=num_running, max_num_batched_tokens=PROMPT_TOKENS * num_running, max_model_len=length
    )
    num_blocks = num_running * (length // BLOCK_SIZE + 1) + 1
    scheduler = Scheduler(limits, CacheConfig(block_size=BLOCK_SIZE), num_blocks)
    for number in range(num_running):
        prompt = [number, *range(PROMPT_TOKENS - 1)]
        params = SamplingParams(max_tokens=num_steps + 50)
        scheduler.add(EngineRequest(f"request-{number}", 0, prompt, params, seed=number, stop_token_ids=[2]))
    plan = scheduler.schedule()
    scheduler.update(plan, answer(plan))
    assert scheduler.stats().num_running == num_running
    return scheduler


def measure(num_running: int, num_steps: int) -> dict[str, float]:
    """Medians in microseconds."""
    scheduler = make_scheduler(num_running, num_steps)
    planning, updating, crossing = [], [], []
    gc.collect()
    gc.freeze()
    for _ in range(num_steps):
        start = time.perf_counter()
        plan = scheduler.schedule()
        planned = time.perf_counter()
        result = answer(plan)
        answered = time.perf_counter()
        scheduler.update(plan, result)
        end = time.perf_counter()
        if len(plan.new_block_ids) == num_running:
            crossing.append(planned - start + end - answered)
        else:
            planning.append(planned - start)
            updating.append(end - answered)
    steps = [first + second for first, second in zip(planning, updating, strict=True)]
    medians = {"schedule": planning, "update": updating, "step": steps, "crossing": crossing}
    return {name: statistics.median(values) * 1e6 for name, values in medians.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--running", default="32,256,1024", help="numbers of running sequences")
    parser.add_argument("--steps", type=int, default=400, help="decode steps to measure")
    arguments = parser.parse_args()
    print(f"{'running':>8} {'schedule µs':>12} {'update µs':>12} {'step µs':>12} {'crossing µs':>12}")
    for num_running in map(int, arguments.running.split(",")):
        figures = measure(num_running, arguments.steps)
        print(f"{num_running:>8} " + " ".join(f"{figures[name]:>12.1f}" for name in figures))


if __name__ == "__main__":
    main()
