"""Time of the scheduler and the KV manager alone, and of the Python around a step, without a model.

Run: `python benchmarks/scheduler.py [--running 1,64,256,1024] [--steps 400] [--vllm PYTHON]`. Prints microseconds of this
thread's processor time, so that other programs of the machine do not count.

`step` is schedule and finish in steady decode; `crossing` the median of the steps in which all sequences take a block at
once; `engine` is a whole `EngineCore.step` with messages encoded, less the executor. An executor that answers with one
token a sequence is prepared outside of the measured time. With `--vllm`, an interpreter whose environment has vllm, its
scheduler is driven the same way in the same run and the ratio is printed.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import time
from pathlib import Path

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


def make_core(num_running: int, num_steps: int, *, num_waiting: int = 0, num_blocks: int = 0) -> EngineCore:
    """An engine with `num_running` sequences that have just finished their prompts, and `num_waiting` behind them."""
    length = PROMPT_TOKENS + num_steps + 100
    scheduler = SchedulerConfig(
        max_num_seqs=num_running, max_num_batched_tokens=PROMPT_TOKENS * num_running, max_model_len=length
    )
    executor = OneToken(num_blocks or num_running * (length // BLOCK_SIZE + 1) + 1)
    policy = ResolvedPlugin(kind="policy", name="fcfs", target="core_policies.fcfs.manifest")
    explain = ResolvedPlugin(kind="kv_connector", name="explain", target="core_kv_connectors.manifests.explain")
    config = EngineConfig(
        model=ModelConfig(model="none", served_names=("none",)),
        cache=CacheConfig(block_size=BLOCK_SIZE),
        scheduler=scheduler,
        plugins=PluginChoices(loader="none", platform="none", table=(policy, explain), kv_connectors=("explain",)),
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


def measure(num_running: int, num_steps: int, **more: int) -> dict[str, float]:
    """Medians in microseconds."""
    core = make_core(num_running, 2 * num_steps, **more)
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
    arguments = parser.parse_args()
    running = [int(count) for count in arguments.running.split(",")]
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
