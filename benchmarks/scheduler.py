"""Time of the scheduler and the KV manager alone, and of the Python around a step, without a model.

Run: `python benchmarks/scheduler.py [--running 1,64,256,1024] [--steps 400] [--vllm PYTHON] [--handoffs]`. Prints microseconds
of this thread's processor time, so that other programs of the machine do not count.

`step` is schedule and finish in steady decode; `crossing` the median of the steps in which all sequences take a block at
once; `engine` is a whole `EngineCore.step` with messages encoded, less the executor. An executor that answers with one
token a sequence is prepared outside of the measured time. With `--vllm`, an interpreter whose environment has vllm, its
scheduler is driven the same way in the same run and the ratio is printed.

`--handoffs` compares `engine` with that of an engine whose requests may move to others (kv_role kv_both), in turns, and counts
the functions that a step calls in each: a number that is the same in every run.
"""

from __future__ import annotations

import argparse
import gc
import json
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

import numpy as np

from core.api.config import CacheConfig, EngineConfig, ModelConfig, PluginChoices, ResolvedPlugin, SchedulerConfig
from core.api.messages import EngineRequest
from core.api.sampling_params import SamplingParams
from core.api.step_plan import StepPlan, StepResult
from core.engine import wire
from core.engine.composition import build_engine, find_observers
from core.engine.core import EngineCore

PROMPT_TOKENS = 1000
BLOCK_SIZE = 16


class OneToken:
    """An executor that answers every plan at once, one token for each sequence that reached its last known one."""

    numerics = "none"
    page_bytes = 1
    phases: tuple[tuple[str, float], ...] = ()

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.seconds = 0.0

    def execute(self, plan: StepPlan) -> StepResult:
        """Token 7 for every row."""
        begin = time.thread_time()
        result = StepResult(plan.slots, np.full(len(plan.slots), 7, np.int32), same_slots=True)
        self.seconds += time.thread_time() - begin
        return result

    def close(self) -> None:
        """Nothing to give back."""


def make_core(
    num_running: int, num_steps: int, *, num_waiting: int = 0, num_blocks: int = 0, hands_over: bool = False
) -> EngineCore:
    """An engine with `num_running` sequences that have just finished their prompts, and `num_waiting` behind them.

    hands_over: whether it has a role in handoffs.
    """
    length = PROMPT_TOKENS + num_steps + 100
    scheduler = SchedulerConfig(
        max_num_seqs=num_running, max_num_batched_tokens=PROMPT_TOKENS * num_running, max_model_len=length
    )
    executor = OneToken(num_blocks or num_running * (length // BLOCK_SIZE + 1) + 1)
    policy = ResolvedPlugin(kind="policy", name="fcfs", target="core_policies.fcfs.manifest")
    explain = ResolvedPlugin(kind="kv_connector", name="explain", target="core_kv_connectors.manifests.explain")
    connectors, own = [explain], {}
    if hands_over:
        connectors.append(ResolvedPlugin(kind="kv_connector", name="tcp", target="core_kv_connectors.manifests.tcp"))
        own["kv_connector.tcp"] = {"role": "kv_both", "listen": f"127.0.0.1:{free_port()}", "peers": ["127.0.0.1:1"]}
    config = EngineConfig(
        model=ModelConfig(model="none", served_names=("none",)),
        cache=CacheConfig(block_size=BLOCK_SIZE),
        scheduler=scheduler,
        plugins=PluginChoices(
            loader="none",
            platform="none",
            table=(policy, *connectors),
            kv_connectors=tuple(connector.name for connector in connectors),
            arguments=own,
        ),
    )
    core = build_engine(config, lambda final: executor, find_observers())  # type: ignore[arg-type, return-value]
    for number in range(num_running + num_waiting):
        prompt = [number, *range(PROMPT_TOKENS - 1)]
        params = SamplingParams(max_tokens=num_steps + 50)
        core.scheduler.add(
            EngineRequest(f"request-{number}", 0, prompt, params, seed=number, stop_token_ids=[2], handle=number)
        )
    core.step()
    assert core.scheduler.stats().num_running == num_running
    return core


def measure(num_running: int, num_steps: int, *, num_waiting: int = 0, num_blocks: int = 0) -> dict[str, float]:
    """Medians in microseconds."""
    core = make_core(num_running, 2 * num_steps, num_waiting=num_waiting, num_blocks=num_blocks)
    scheduler, executor = core.scheduler, core.executor
    assert isinstance(executor, OneToken)
    plain, crossing, engine = [], [], []
    gc.collect()
    gc.freeze()
    for _ in range(num_steps):
        start = time.thread_time()
        step = scheduler.schedule()
        planned = time.thread_time()
        result = executor.execute(step.plan)
        answered = time.thread_time()
        scheduler.finish(step, result)
        end = time.thread_time()
        spent = planned - start + end - answered
        (crossing if len(step.plan.new_block_ids) == num_running else plain).append(spent)
    for _ in range(num_steps):
        executor.seconds = 0.0
        start = time.thread_time()
        wire.encode(core.step())
        engine.append(time.thread_time() - start - executor.seconds)
    medians = {"step": plain, "crossing": crossing, "engine": engine}
    return {name: statistics.median(values) * 1e6 for name, values in medians.items()}


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def engine_step(core: EngineCore) -> float:
    """Microseconds of one step of an engine, less those of its executor."""
    assert isinstance(core.executor, OneToken)
    core.executor.seconds = 0.0
    start = time.thread_time()
    wire.encode(core.step())
    return (time.thread_time() - start - core.executor.seconds) * 1e6


def num_calls(core: EngineCore, num_steps: int) -> float:
    """Functions, those written in C included, that a step calls; the mean of `num_steps`."""
    count = 0

    def note(frame: FrameType, event: str, function: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        for _ in range(num_steps):
            wire.encode(core.step())
    finally:
        sys.setprofile(None)
    return count / num_steps


def compare_handoffs(num_running: int, num_steps: int) -> None:
    """Print what an engine does more where its requests may move."""
    cores = {role: make_core(num_running, 3 * num_steps, hands_over=role) for role in (False, True)}
    times: dict[bool, list[float]] = {False: [], True: []}
    gc.collect()
    gc.freeze()
    for number in range(2 * num_steps):
        for role in (False, True)[:: 1 if number % 2 else -1]:
            times[role].append(engine_step(cores[role]))
    alone, both = (statistics.median(values[num_steps // 2 :]) for values in times.values())
    calls = [num_calls(core, num_steps // 4) for core in cores.values()]
    print(
        f"{num_running:>8} {alone:>9.1f} us, kv_both {both:>9.1f} us ({both / alone - 1:+.1%}); "
        f"calls {calls[0]:.1f} and {calls[1]:.1f}"
    )
    for core in cores.values():
        core.close()


def measure_vllm(python: str, running: list[int], num_steps: int) -> dict[int, float]:
    """Medians of vLLM's schedule and update_from_output, in microseconds, by the number of running sequences."""
    script = Path(__file__).with_name("vllm_scheduler.py")
    command = [python, "-P", str(script), "--running", ",".join(map(str, running)), "--steps", str(num_steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {int(count): value for count, value in json.loads(done.stdout.splitlines()[-1]).items()}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--running", default="1,64,256,1024", help="numbers of running sequences")
    parser.add_argument("--steps", type=int, default=400, help="decode steps to measure")
    parser.add_argument("--vllm", metavar="PYTHON", help="interpreter with vllm, for the ratio")
    parser.add_argument("--handoffs", action="store_true", help="compare with an engine whose requests may move")
    arguments = parser.parse_args()
    running = [int(count) for count in arguments.running.split(",")]
    if arguments.handoffs:
        for count in running:
            compare_handoffs(count, arguments.steps)
        return
    theirs = measure_vllm(arguments.vllm, running, arguments.steps) if arguments.vllm else {}
    print(f"{'running':>8} {'step':>9} {'crossing':>9} {'engine':>9}" + ("  vllm step  ratio" if theirs else ""))
    for count in running:
        figures = measure(count, arguments.steps)
        line = f"{count:>8} " + " ".join(f"{value:>9.1f}" for value in figures.values())
        if theirs:
            line += f" {theirs[count]:>10.1f} {theirs[count] / figures['step']:>6.1f}"
        print(line)
    print("\n64 running, a step that admits nothing")
    for waiting in (0, 10, 1000, 100_000):
        print(f"{waiting:>8} waiting {measure(64, arguments.steps, num_waiting=waiting)['step']:>9.1f}")
    for blocks in (10_000, 1_000_000, 10_000_000):
        print(f"{blocks:>8} blocks  {measure(64, arguments.steps, num_blocks=blocks)['step']:>9.1f}")


if __name__ == "__main__":
    main()
