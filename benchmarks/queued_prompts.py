"""What `--queued-prompts-weight` does to requests at random times, on a machine whose steps take a known time.

Run it: `python -m benchmarks.queued_prompts`. Owns: the arrivals and the table. Never does: measure a real machine, which
`python -m benchmarks.latencies` does. Called by: people.

The scheduler is the engine's own and the model is the tests' fake one. A step takes what the machine "two cores" of
`tests/scheduler/test_step_cost.py` takes: 8 ms, and 0.4 ms for each prompt token.
"""

from __future__ import annotations

import argparse
import math
import random
from dataclasses import dataclass

from core.scheduler.step_cost import work_of
from tests.scheduler.fake_model import FakeExecutor, make_request, make_scheduler
from tests.scheduler.test_step_cost import MACHINES

NUM_BLOCKS = 4096
LIMITS = {"max_num_mixed_batched_tokens": 64, "max_num_batched_tokens": 2048, "max_num_seqs": 32, "max_model_len": 4096}
COLUMNS = ("W", "TTFT p50 ms", "TTFT p90 ms", "TTFT p99 ms", "ITL p50 ms", "ITL p99 ms", "longest ITL ms")


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request. at: seconds."""

    at: float
    num_prompt_tokens: int
    max_tokens: int


def arrivals(number: int, rate: float, seed: int) -> list[Arrival]:
    """Requests at random times (Poisson) with random lengths: medians of 122 tokens in and 67 out. rate: a second."""
    draw, now, found = random.Random(seed), 0.0, []
    for _ in range(number):
        now += draw.expovariate(rate)
        num_in = int(min(1024, max(8, draw.lognormvariate(4.8, 0.9))))
        num_out = int(min(256, max(4, draw.lognormvariate(4.2, 0.7))))
        found.append(Arrival(now, num_in, num_out))
    return found


def served(weight: float, requests: list[Arrival]) -> tuple[list[float], list[float]]:
    """Milliseconds to each first token, and between tokens."""
    scheduler, executor = make_scheduler(NUM_BLOCKS, queued_prompts_weight=weight, **LIMITS), FakeExecutor(NUM_BLOCKS)
    waiting = [(f"r{number}", request) for number, request in enumerate(requests)][::-1]
    now, last = 0.0, {name: request.at for name, request in waiting}
    begun: set[str] = set()
    firsts: list[float] = []
    gaps: list[float] = []
    while waiting or scheduler.has_unfinished():
        if not scheduler.has_unfinished():
            now = max(now, waiting[-1][1].at)
        while waiting and waiting[-1][1].at <= now:
            name, request = waiting.pop()
            scheduler.add(make_request(name, [len(waiting)] * request.num_prompt_tokens, request.max_tokens))
        step = scheduler.schedule()
        result = executor.execute(step.plan)
        now += MACHINES["two cores"].seconds(work_of(step.plan, step.num_decodes))
        names = [executor.held[slot].request.request_id for slot in result.slots.tolist()]
        scheduler.finish(step, result)
        for name in names:
            (gaps if name in begun else firsts).append(1000 * (now - last[name]))
            begun.add(name)
            last[name] = now
    return firsts, gaps


def percentile(values: list[float], share: float) -> float:
    """The value that this share of all does not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.queued_prompts", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--weights", nargs="*", type=float, default=[0.0, 1.0, 2.0, 4.0])
    parser.add_argument(
        "--rate", type=float, default=2.0, help="requests a second; the machine is full from some 2.2 on"
    )
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print("| " + " | ".join(COLUMNS) + " |\n|" + " --- |" * len(COLUMNS))
    for weight in given.weights:
        firsts, gaps = served(weight, arrivals(given.requests, given.rate, given.seed))
        cells = [percentile(firsts, share) for share in (0.5, 0.9, 0.99)] + [
            percentile(gaps, 0.5),
            percentile(gaps, 0.99),
            max(gaps),
        ]
        print(f"| {weight:g} | " + " | ".join(f"{cell:,.1f}" for cell in cells) + " |", flush=True)


if __name__ == "__main__":
    main()
