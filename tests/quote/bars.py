"""The long run of quotes: coverage and width at three loads, clients that come back, the time of a quote. For `make test-know`.

Owns: the bars. The scheduler and the forecast are real; steps take the seconds of a made-up machine, on a clock of its own, so
that the figures but the last do not depend on this one. Called by: a person. It ends with 1 if a bar is missed.

    python -m tests.quote.bars --requests 2000
"""

import argparse
import sys
import time
from statistics import median

from core.api.scheduler_config import SchedulerConfig
from core.scheduler.step_cost import StepCost, StepWork
from core_frontend.quote.forecast import Ask, Forecast
from tests.quote.machine import Load, Served, came_back, capacity
from tests.scheduler.test_step_cost import MACHINES

SETTINGS = {
    "whole steps": {},
    "mixed steps": {"max_num_mixed_batched_tokens": 24, "queued_prompts_weight": 2.0, "max_num_batched_tokens": 512},
}
LOADS = (0.3, 0.6, 0.9)
MOST_MS = 1.0


def intervals(num_requests: int) -> bool:
    """Coverage and width; the first tenth of the requests teaches."""
    kept = True
    for name, limits in SETTINGS.items():
        load = Load(seed=1, limits=limits)
        most = capacity(load)
        for share in LOADS:
            served = Served(load)
            served.poisson(share * most, num_requests)
            served.run()
            told = list(served.told.values())[num_requests // 10 :]
            firsts = sum(each.first.low <= each.took_first <= each.first.high for each in told) / len(told)
            ends = sum(each.end.low <= each.took_end <= each.end.high for each in told) / len(told)
            took = median(each.took_first for each in told)
            width = median(each.first.high - each.first.low for each in told) / took
            print(
                f"{name}, load {share:.0%}: first tokens {firsts:.1%} within, ends {ends:.1%}; median {took:.3f} s, "
                f"width {width:.2f} of it"
            )
            kept = kept and 0.88 <= firsts <= 0.92
    return kept


def comers() -> bool:
    """Clients that come back at `Retry-After`, beside what the pace of the queue told them."""
    kept = True
    for machine in ("two cores", "one slow core"):
        for name, limits in SETTINGS.items():
            load = Load(MACHINES[machine], limits=limits)
            refused, share = came_back(load, foretells=True)
            _, guessed = came_back(load, foretells=False)
            print(
                f"{machine}, {name}: {refused} refused, {share:.1%} got in when they came back; by the pace {guessed:.1%}"
            )
            kept = kept and share >= 0.9
    return kept


def seconds_of_a_quote() -> bool:
    """A quote while a thousand requests wait, each time from the start."""
    forecast = Forecast(SchedulerConfig(max_num_seqs=32))
    cost, machine = StepCost(), MACHINES["two cores"]
    for number in range(60):
        work = StepWork(number % 5 * 100, number % 7, 1000, number % 5 * 5000)
        cost.observe(work, machine.seconds(work))
    forecast.learn(cost.state(), 1 << 18)
    for number in range(1000):
        forecast.enter(f"w{number}", Ask(100 + number % 300, 200), time.monotonic())
    times = []
    for number in range(100):
        forecast.enter(f"x{number}", Ask(100, 100), time.monotonic())
        forecast.end(f"x{number}")
        begin = time.perf_counter()
        forecast.foretell(Ask(100, 100))
        times.append(1000 * (time.perf_counter() - begin))
    print(f"a quote with 1,000 waiting: median {median(times):.2f} ms")
    return median(times) <= MOST_MS


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=2000)
    given = parser.parse_args()
    kept = [intervals(given.requests), comers(), seconds_of_a_quote()]
    print("all bars are kept" if all(kept) else "a bar is missed")
    return not all(kept)


if __name__ == "__main__":
    sys.exit(main())
