"""What the states that are kept at block edges cost decode: an engine that keeps them beside one without a prefix cache.

Run: `python -m benchmarks.kv_edges [MODEL]`, a model with states, such as the one that `python -m benchmarks.agents` writes for
`gdn`. Without MODEL it is one with the widths of Qwen3.5 0.8B and `--layers` layers, which takes a minute or two on two cores.
Rounds of the two engines alternate. The line has medians of a step, by the clock and in processor seconds of all threads, and
the median of the ratios of neighbouring rounds. The bar is 1.01.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.agents.models import short_path
from core.api.messages import EngineRequest
from core.api.sampling_params import SamplingParams
from core.engine.composition import build_engine
from core.engine.core import EngineCore
from core_config.resolve import resolve
from core_runtime.executor.uniproc import UniprocExecutor

PROMPT = 40
"""Tokens of a prompt. Blocks have 16 tokens: an answer passes an edge with each 16 of its own."""
Taken = list[tuple[float, float]]
"""For each round the seconds of a step, by the clock and of processors."""


def start(model: str, kv_bytes: int, *, keeps: bool) -> EngineCore:
    """Start an engine; keeps: whether it has a prefix cache, and so keeps states."""
    given = {"model": model, "max_model_len": 512, "max_num_seqs": 16, "kv_cache_memory_bytes": kv_bytes}
    given |= {"use_tqdm_on_load": False, "enable_prefix_caching": keeps, "dtype": "bfloat16"}
    core = build_engine(resolve(given, context="serve", environ={}).engine, UniprocExecutor, {})
    if keeps:
        # Until blocks are evicted: the first write to each page of new memory takes longer than the step.
        state_bytes = core.executor.page_bytes * core.scheduler.kv.states.num_blocks
        for _ in range(kv_bytes // state_bytes + 4):
            step_seconds(core, 1, 1)
    return core


def step_seconds(core: EngineCore, streams: int, answer: int) -> tuple[float, float]:
    """Seconds of a decode step: answers to new prompts, from the first token of all of them on."""
    params = SamplingParams(max_tokens=answer, temperature=0.0, ignore_eos=True)
    prompts = [[random.randrange(5, 250) for _ in range(PROMPT)] for _ in range(streams)]
    core.add([EngineRequest(f"r{index}", 0, ids, params, seed=1) for index, ids in enumerate(prompts)])
    for _ in range(2 + streams * PROMPT // 64):
        core.step()
    begin, busy, count = time.perf_counter(), time.process_time(), 0
    while core.has_work():
        core.step()
        count += 1
    count = max(count, 1)
    return (time.perf_counter() - begin) / count, (time.process_time() - busy) / count


def compare(model: str, kv_bytes: int, streams: int, answer: int, rounds: int) -> None:
    """Print both medians and the ratios."""
    engines = {
        "without a cache": start(model, kv_bytes, keeps=False),
        "edges kept": start(model, kv_bytes, keeps=True),
    }
    taken: dict[str, Taken] = {name: [] for name in engines}
    for turn in range(rounds + 1):
        for name in sorted(engines, reverse=bool(turn % 2)):
            found = step_seconds(engines[name], streams, answer)
            if turn:
                taken[name].append(found)
    plain, kept = taken["without a cache"], taken["edges kept"]
    for place, unit in enumerate(("by the clock", "of processors")):
        medians = {name: 1e3 * statistics.median(one[place] for one in rows) for name, rows in taken.items()}
        ratio = statistics.median(b[place] / a[place] for a, b in zip(plain, kept, strict=True))
        shown = ", ".join(f"{name} {ms:.3f}" for name, ms in medians.items())
        print(f"ms {unit}, a step of {streams}: {shown}; median ratio {ratio:.4f}", flush=True)


def main() -> None:
    """Read the arguments and compare."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kv_edges", description=__doc__)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--layers", type=int, default=4, help="of the model that is written where none is named")
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--answer", type=int, default=80, help="tokens of an answer")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--kv-bytes", type=int, default=128 << 20, help="of the cache, which is filled first")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kv-edges-") as folder:
        model = given.model or str(short_path("gdn", given.layers, Path(folder)))
        compare(model, given.kv_bytes, given.streams, given.answer, given.rounds)


if __name__ == "__main__":
    main()
