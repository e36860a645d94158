"""Simulate many schedules: `python -m tests.simulation.run`.

Owns: the command: seeds over processes, the report, shrinking, replays. Never does: judge. Called by: `make simulate`.

    python -m tests.simulation.run --minutes 10 --processes 2
    python -m tests.simulation.run --seed 4711              # one seed, with what it does
    python -m tests.simulation.run --replay failure.json    # a list of events, as a failure is printed
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import sys
import time
from collections import Counter
from pathlib import Path

from tests.simulation.events import Schedule, from_text, to_text
from tests.simulation.generator import schedule_of
from tests.simulation.play import Play, simulation
from tests.simulation.shrink import shrink

Result = tuple[int, list[tuple[int, str]], float]
"""Schedules, the seeds that failed with their kinds, seconds of the processor."""

BATCH = 10
"""Schedules between two looks at the clock, and at what they have left in memory: the less that is, the faster it is found."""
MOST_SHOWN = 8


def main() -> int:
    """Entry point. Returns 1 when an invariant was violated."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.run")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seed", type=int, help="play this one alone")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="play the events of this file")
    parser.add_argument("--no-shrink", action="store_true", help="print failures as they are")
    options = parser.parse_args()
    if options.replay is not None:
        return _show(from_text(options.replay.read_text()), shrinks=False)
    if options.seed is not None:
        return _show(schedule_of(options.seed), shrinks=not options.no_shrink)
    return _many(options)


def first_violation(play: Play, schedule: Schedule) -> str:
    """Its kind; empty where there is none."""
    violations = play(schedule).violations
    return violations[0].kind if violations else ""


def _show(schedule: Schedule, *, shrinks: bool) -> int:
    with simulation() as play:
        outcome = play(schedule)
        if outcome.violations and shrinks:
            schedule = shrink(schedule, lambda smaller: first_violation(play, smaller))
            outcome = play(schedule)
    print(to_text(schedule), end="")
    for violation in outcome.violations:
        print(violation)
    print(f"{outcome.num_turns} callbacks, {outcome.simulated_s:.1f} simulated seconds")
    return 1 if outcome.violations else 0


def _many(options: argparse.Namespace) -> int:
    begin = time.perf_counter()
    results: multiprocessing.Queue[Result] = multiprocessing.Queue()
    count = options.processes
    arguments = [(results, options.first_seed + number, count, options.minutes * 60.0) for number in range(count)]
    workers = [multiprocessing.Process(target=_work, args=each, daemon=True) for each in arguments]
    for worker in workers:
        worker.start()
    num_schedules = 0
    processor_s = 0.0
    failures: list[tuple[int, str]] = []
    for _ in workers:
        played, failed, busy_s = results.get()
        processor_s += busy_s
        num_schedules += played
        failures += failed
    for worker in workers:
        worker.join()
    seconds = time.perf_counter() - begin
    rates = f"{num_schedules / seconds:.0f} a second, {num_schedules / processor_s:.0f} a second of a processor"
    print(f"{num_schedules} schedules in {seconds:.0f} s: {rates}; {len(failures)} violated")
    _report(sorted(failures), shrinks=not options.no_shrink)
    return 1 if failures else 0


def _work(results: multiprocessing.Queue[Result], first: int, step: int, seconds: float) -> None:
    """Play every `step`th seed from the first on until the time is over."""
    read = time.perf_counter
    end = read() + seconds
    failures: list[tuple[int, str]] = []
    seed = first
    gc.disable()
    with simulation() as play:
        play(schedule_of(seed))
        gc.collect()
        gc.freeze()  # modules, and what is kept from one schedule to the next
        while read() < end:
            for _ in range(BATCH):
                kind = first_violation(play, schedule_of(seed))
                if kind:
                    failures.append((seed, kind))
                seed += step
            gc.collect()
    results.put(((seed - first) // step, failures, time.process_time()))


def _report(failures: list[tuple[int, str]], *, shrinks: bool) -> None:
    """The kinds of violations, and one schedule of each."""
    counts = Counter(kind for _, kind in failures)
    for kind, count in counts.most_common(MOST_SHOWN):
        seed = next(seed for seed, each in failures if each == kind)
        print(f"\n{kind}: {count} times, first with the seed {seed}")
        sys.stdout.flush()
        _show(schedule_of(seed), shrinks=shrinks)


if __name__ == "__main__":
    sys.exit(main())
