"""Host work of a recorded step on a GPU: what Python does for it, over a device that computes nothing.

Run: `nice python -m benchmarks.gpu_host [--sequences 256] [--length 131072] [--steps 400]`. Prints medians in microseconds.

The runtime is that of GPUs; copies are made in memory, kernels and graphs do nothing. So it counts neither the driver's own
calls (three copies, two graph launches, two events) nor the scheduler, which `benchmarks.scheduler` measures.
Owns: the device, the plans and the table. Never does: judge a figure (`tests/executor/test_host_steps.py` counts calls).
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from core.api.config import CompilationConfig
from core.api.messages import EngineRequest
from core.api.sampling_params import SamplingParams
from core.api.specs import KVGroup
from core.api.step_limits import StepLimits
from core.api.step_plan import NewSequence, StepPlan, StepResult
from core_kit.devices.fake_device import FakeCalls
from core_platforms.cuda.graphs import Graphs
from core_platforms.cuda.runtime import DeviceRuntime
from core_runtime.executor.forward import ForwardPass
from core_runtime.executor.model_runner import ModelRunner
from core_runtime.executor.steps.ahead import Begun, StepsAhead
from core_runtime.executor.steps.batch import PersistentBatch
from core_runtime.executor.steps.buffers import StepBuffers
from core_runtime.executor.steps.recordable import recorder_of
from core_runtime.layers.kernels import KernelSet
from core_runtime.sampling.sampler import Sampler

BLOCK_SIZE = 16
VOCAB = 128
CONTEXT = 4096
PROMPT = 300
MIB = 1 << 20


class IdleCalls(FakeCalls):
    """A device whose kernels and graphs do nothing, and whose copies are made at once.

    copied: bytes of each copy to the device.
    """

    def __init__(self) -> None:
        super().__init__()
        self.copied: list[int] = []

    def run(self, name: str, function: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]) -> None:
        """Compute nothing."""

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Copy at once."""
        target.copy_(source)
        if not self.is_pinned(target):
            self.uploads += 1
            self.copied.append(source.nbytes)

    def mark(self) -> Any:
        """Return an event that has come."""
        return self

    def record(self, run: Callable[[], None]) -> Any:
        """Record nothing."""
        run()
        self.recorded += 1
        return self

    def replay(self) -> None:
        """Compute nothing."""
        self.replayed += 1


class IdleModel:
    """A model without layers, as far as a runner knows it."""

    capturable = True
    capture = "any"
    mixers = ()

    def __init__(self, max_logits: int) -> None:
        self.max_logits = max_logits
        self.kernels = SimpleNamespace(step_hooks=())
        self._logits = torch.zeros(max_logits, VOCAB)

    def forward(self, token_ids: Tensor, positions: Tensor, metadata: Sequence[Any]) -> None:
        """Compute nothing."""

    def logits(self, rows: Tensor) -> None:
        """Compute nothing."""

    def logits_view(self, count: int) -> Tensor:
        """Return zeros."""
        return self._logits[:count]


class HostSteps:
    """Steps of a runner of GPUs: `num_seqs` sequences of different lengths, each of which computes one token a step.

    length: of the longest sequence that there may be.
    """

    def __init__(self, num_seqs: int, length: int, max_tokens: int = 8192) -> None:
        self.calls = IdleCalls()
        self.num_seqs = num_seqs
        limits = StepLimits(sequences=num_seqs, tokens=max_tokens, logit_rows=num_seqs)
        runtime = DeviceRuntime(self.calls, KernelSet([], "cpu"), Graphs(self.calls, 512 * MIB, 1024))
        groups = [KVGroup("full", (0,))]
        self.buffers = StepBuffers(limits, length // BLOCK_SIZE, torch.device("cpu"), 1, runtime, num_seqs, VOCAB // 32)
        model: Any = IdleModel(num_seqs)
        compilation = CompilationConfig()
        recorder = recorder_of(model, runtime, self.buffers, padding=True, eager=False, compilation=compilation)
        forward = ForwardPass(model, self.buffers, recorder, [])
        self.batch = PersistentBatch(self.buffers, BLOCK_SIZE, groups)
        sampler = Sampler(VOCAB, race=lambda *args, **options: self.calls.run("race", print, args, options))
        self.runner = ModelRunner(forward, self.batch, sampler, None)
        self.ahead = StepsAhead(self.runner, runtime)
        self._in_flight: deque[Begun] = deque()
        self._slots = np.arange(num_seqs, dtype=np.int32)
        self._computed = CONTEXT + self._slots - 1
        self._is_first = True
        self._next_block = 0
        self._arrivals = 0

    def plan(self) -> StepPlan:
        """Return the plan of the next step: the first one adds all sequences, later ones go on."""
        plan = StepPlan(self._slots, np.ones(self.num_seqs, np.int32), self._computed.copy())
        plan.total_num_tokens = self.num_seqs
        plan.same_batch = not self._is_first
        if self._is_first:
            prompt = [1] * (CONTEXT + self.num_seqs)
            plan.new = [self._sequence(slot, prompt[: CONTEXT + slot]) for slot in range(self.num_seqs)]
        else:
            for slot in (self._computed % BLOCK_SIZE == 0).nonzero()[0].tolist():
                plan.new_block_ids[slot] = [self._blocks(1)]
        self._is_first = False
        self._computed += 1
        return plan

    def arrival(self) -> StepPlan:
        """Return the plan of a step in which a sequence has left and another one comes, with a prompt of `PROMPT` tokens."""
        plan = self.plan()
        slot = self._arrivals % self.num_seqs
        self._arrivals += 1
        plan.same_batch = False
        plan.removed = [slot]
        plan.new = [self._sequence(slot, [1] * PROMPT)]
        plan.new_block_ids.pop(slot, None)
        plan.query_lens[slot] = PROMPT
        plan.num_computed[slot] = 0
        plan.total_num_tokens += PROMPT - 1
        self._computed[slot] = PROMPT
        return plan

    def step(self, plan: StepPlan) -> StepResult | None:
        """Begin a step, and finish the one before it."""
        self._in_flight.append(self.ahead.begin(plan))
        if len(self._in_flight) < 2:
            return None
        return self.ahead.finish(self._in_flight.popleft())

    def _sequence(self, slot: int, prompt: list[int]) -> NewSequence:
        params = SamplingParams(temperature=0, max_tokens=1 << 16)
        request = EngineRequest(str(slot), 0, prompt, params, slot)
        blocks = self._blocks(-(-len(prompt) // BLOCK_SIZE))
        return NewSequence(slot, request, [], len(prompt) - 1, [blocks], 1 << 17)

    def _blocks(self, count: int) -> list[int]:
        first = self._next_block
        self._next_block += count
        return list(range(first, self._next_block))


class Clock:
    """The time in functions of a step, each without that of the others that it calls.

    spent: microseconds of this step, by name.
    """

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self._inner = [0.0]

    def watch(self, owner: object, name: str, shown: str) -> None:
        """Measure a method of an object from now on."""
        function = getattr(owner, name)

        def timed(*args: Any, **options: Any) -> Any:
            self._inner.append(0.0)
            begin = time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                seconds = time.perf_counter() - begin
                inner = self._inner.pop()
                self._inner[-1] += seconds
                self.spent[shown] = self.spent.get(shown, 0.0) + (seconds - inner) * 1e6

        setattr(owner, name, timed)


def watch(steps: HostSteps, clock: Clock) -> None:
    """Measure the parts of a step."""
    staging: Any = steps.buffers._staging
    clock.watch(steps.batch, "apply", "apply the plan")
    clock.watch(steps.batch, "step_input", "advance the input")
    clock.watch(steps.batch.tables, "advance", "advance the block tables")
    clock.watch(steps.buffers, "send", "write the device's tables")
    clock.watch(staging, "send", "stage the bytes")
    clock.watch(steps.calls, "copy", "copies")
    clock.watch(steps.runner.forward, "follow", "replay the step")
    clock.watch(steps.runner.forward, "run", "pad and replay the step")
    clock.watch(steps.runner.forward, "choose", "choose rows of logits")
    clock.watch(steps.batch, "views", "views of the step")
    clock.watch(steps.batch, "_add", "add a sequence")
    clock.watch(steps.batch, "_with_rows", "bind the sampling rows")
    clock.watch(steps.batch.tables, "fill", "fill the block tables")
    clock.watch(steps.runner, "_draw", "replay the head and the draw")
    clock.watch(steps.ahead._returns, "begin", "begin the way back")
    clock.watch(steps.ahead, "_launch", "launch, expect tokens")
    clock.watch(steps.ahead, "begin", "begin")
    clock.watch(steps.ahead, "finish", "finish")


def measure(num_seqs: int, length: int, num_steps: int, *, parts: bool, mixed: bool = False) -> dict[str, float]:
    """Return the median of a step in microseconds, and those of its parts if they are wanted.

    mixed: a sequence comes in every step.
    """
    steps = HostSteps(num_seqs, length)
    plan_of = steps.arrival if mixed else steps.plan
    steps.step(steps.plan())
    for _ in range(50):
        steps.step(plan_of())
    clock = Clock()
    if parts:
        watch(steps, clock)
    found: dict[str, list[float]] = {}
    gc.disable()
    for _ in range(num_steps):
        plan = plan_of()
        clock.spent = {}
        begin = time.perf_counter()
        steps.step(plan)
        clock.spent["step"] = (time.perf_counter() - begin) * 1e6
        for name, spent in clock.spent.items():
            found.setdefault(name, []).append(spent)
    gc.enable()
    return {name: statistics.median(values) for name, values in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--length", type=int, default=131072)
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{options.sequences} sequences, up to {options.length} positions")
    for mixed in (False, True):
        sizes = options.sequences, options.length, options.steps
        whole = measure(*sizes, parts=False, mixed=mixed)["step"]
        parts = measure(*sizes, parts=True, mixed=mixed)
        kind = f"a step with a prompt of {PROMPT} tokens" if mixed else "a decoding step"
        print(f"{kind}: {whole:.0f} us")
        for name, spent in sorted(parts.items(), key=lambda item: -item[1]):
            if name != "step":
                print(f"  {name:28} {spent:6.1f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
