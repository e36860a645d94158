"""Where a decode step's time goes: Python between native calls, part by part. `python -m benchmarks.profile`.

Owns: stopwatches around the public methods of the scheduler, the runner and the native extension, and the table.
Never does: use the interpreter's profiling hooks, which cost more than the steps. Called by: people.

A part's time is exclusive: what a nested part or a native call takes is not in it. The stopwatches' own cost is measured
first and taken off. `Python` is the sum of all parts but the native one, encoding of the outputs included.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.prompts import PromptMaker
from core import LLM, SamplingParams
from core.api.messages import EngineRequest
from core.engine.core import EngineCore
from core.engine.wire import encode

PROMPT_TOKENS = 64
WARM_STEPS = 8
NATIVE = "native"
PARTS = {
    "schedule": "Scheduler.schedule",
    "arrays": "persistent batch: deltas and flat arrays",
    "forward": "the calls that replay the recorded kernels",
    "sampling": "rows, keys, results",
    "finish": "Scheduler.finish",
    "encode": "one message for all outputs",
    "other": "engine loop and model runner",
    NATIVE: "inside the extension",
}
NOT_WATCHED = (
    "isa",
    "isas",
    "set_isa",
    "pool_init",
    "pool_size",
    "linear_pack",
    "linear_bytes",
    "linear_prepared_bytes",
    "tape_begin",
)


class Stopwatches:
    """Exclusive seconds by part. inside, outside: what one stopwatch adds to its own part and to the one around it."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.seconds: dict[str, float] = {}
        self.inside = self.outside = 0.0
        self._open: list[list[float]] = []

    def watch(self, owner: Any, name: str, part: str) -> None:
        """Replace `owner.name` by itself with a stopwatch."""
        setattr(owner, name, self.watched(getattr(owner, name), part))

    def watched(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        """`function` with a stopwatch for `part`."""
        seconds, stack, clock = self.seconds, self._open, self._clock
        seconds.setdefault(part, 0.0)

        def call(*arguments: Any, **named: Any) -> Any:
            nested = [0.0]
            stack.append(nested)
            start = clock()
            try:
                return function(*arguments, **named)
            finally:
                spent = clock() - start
                stack.pop()
                seconds[part] += spent - nested[0] - self.inside
                if stack:
                    stack[-1][0] += spent + self.outside

        return call

    def calibrate(self, calls: int = 20_000) -> None:
        """Measure the cost of a stopwatch, on a function that does nothing."""

        def nothing(*_: Any) -> None:
            return None

        watched = self.watched(nothing, "calibration")
        whole = min(_duration(watched, calls) for _ in range(5)) / calls
        bare = min(_duration(nothing, calls) for _ in range(5)) / calls
        self.take()
        within = []
        for _ in range(5):
            _duration(watched, calls)
            within.append(self.take()["calibration"] / calls)
        del self.seconds["calibration"]
        self.inside = max(0.0, min(within) - bare)
        self.outside = max(0.0, whole - min(within))

    def take(self) -> dict[str, float]:
        """The times since the last call, and start again."""
        taken = dict(self.seconds)
        for part in self.seconds:
            self.seconds[part] = 0.0
        return taken


def _duration(function: Callable[..., Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        function(1, 2)
    return time.perf_counter() - start


def watch_native(native: ModuleType, watches: Stopwatches) -> None:
    """Stopwatches on all kernels, before anything keeps a reference to one."""
    for name in dir(native):
        if not name.startswith("_") and callable(getattr(native, name)) and name not in NOT_WATCHED:
            watches.watch(native, name, NATIVE)


def watch_engine(core: EngineCore, watches: Stopwatches) -> None:
    """Stopwatches on the parts of a step."""
    runner = core.executor.worker.runner  # type: ignore[attr-defined]
    places = (
        (core.scheduler, "schedule", "schedule"),
        (core.scheduler, "finish", "finish"),
        (runner.batch, "apply", "arrays"),
        (runner.batch, "step_input", "arrays"),
        (runner.batch, "extend", "arrays"),
        (runner.forward, "run", "forward"),
        (runner.forward, "logits", "forward"),
        (runner.sampler, "sample", "sampling"),
        (core, "step", "other"),
    )
    for owner, name, part in places:
        if hasattr(owner, name):
            watches.watch(owner, name, part)


def measure(core: EngineCore, watches: Stopwatches, prompts: list[list[int]], steps: int) -> dict[str, float]:
    """Medians in µs over `steps` decode steps of all prompts at once: each part, `Python`, and `wall` of step and encode."""
    params = SamplingParams(max_tokens=WARM_STEPS + steps + 8, temperature=0.0, ignore_eos=True)
    keys = [f"profile-{len(prompts)}-{number}" for number in range(len(prompts))]
    core.add(
        EngineRequest(key, 0, prompt, params, seed=1, stop_token_ids=[], handle=number)
        for number, (key, prompt) in enumerate(zip(keys, prompts, strict=True))
    )
    watched_encode = watches.watched(encode, "encode")
    while core.step().num_tokens < len(prompts):
        pass
    for _ in range(WARM_STEPS):
        core.step()
    rows, walls = [], []
    gc.collect()
    gc.freeze()
    for _ in range(steps):
        watches.take()
        start = time.perf_counter()
        watched_encode(core.step())
        walls.append(time.perf_counter() - start)
        rows.append(watches.take())
    gc.unfreeze()
    core.abort(keys)
    core.step()
    figures = {part: statistics.median(row[part] for row in rows) * 1e6 for part in rows[0]}
    python = statistics.median(sum(row.values()) - row.get(NATIVE, 0.0) for row in rows)
    return figures | {"Python": python * 1e6, "wall": statistics.median(walls) * 1e6}


def native_extension() -> ModuleType | None:
    """The compiled kernels, or None where torch serves."""
    try:
        from core_platforms.cpu import _native
    except ImportError:
        return None
    return _native


def main() -> None:
    """Print one column a batch size."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", help="model reference; the embedded default when left out")
    parser.add_argument("--batch", default="1,16,64", help="numbers of sequences")
    parser.add_argument("--steps", type=int, default=100, help="decode steps to measure")
    options = parser.parse_args()
    sizes = [int(size) for size in options.batch.split(",")]
    watches, native = Stopwatches(), native_extension()
    watches.calibrate()
    if native is not None:
        watch_native(native, watches)
    length = PROMPT_TOKENS + WARM_STEPS + options.steps + 16
    with LLM(model=options.model, max_model_len=length, max_num_seqs=max(sizes), use_tqdm_on_load=False) as llm:
        core = llm._client.core
        watch_engine(core, watches)
        maker = PromptMaker(lambda text: list(llm.get_tokenizer().encode(text, add_special_tokens=False)))
        columns = [measure(core, watches, maker.batch(size, PROMPT_TOKENS), options.steps) for size in sizes]
    table = Table("µs a step", "what", *(f"batch {size}" for size in sizes), title=f"{core.executor.numerics}")
    for part, what in (
        PARTS | {"Python": "all but native", "wall": "as a clock sees it, stopwatches included"}
    ).items():
        table.add_row(part, what, *(f"{column.get(part, 0.0):,.0f}" for column in columns))
    Console().print(table)


if __name__ == "__main__":
    main()
