"""What `--keep-kv` costs, in process: steps beside an engine without it, and the start of the engine after a death.

Run: `python -m benchmarks.kept_kv MODEL`. Rounds of two engines alternate; medians and their ratio. The restart is that of an
engine on the file of one that was left without an end: adoption counts in its start, checksums in its first answer.
"""

from __future__ import annotations

import gc
import os
import random
import statistics
import sys
import time

import msgspec

from core.api.messages import EngineRequest
from core.api.sampling_params import SamplingParams
from core.engine.composition import build_engine
from core.engine.core import EngineCore
from core_config.resolve import resolve
from core_runtime.executor.uniproc import UniprocExecutor
from core_supervision.link.anonymous_file import anonymous_file

ROUNDS = 15
STEPS_BYTES = 256 << 20
"""Cache of the engines whose steps are timed: it is full after the first rounds, so that blocks are evicted all the time."""
RESTART_BYTES = 1 << 30
SCENARIOS = {"one stream": (1, 30, 96), "one prompt": (1, 1500, 1), "many": (24, 60, 24)}
"""Streams, tokens of each prompt, tokens of each answer."""


def start(model: str, file: int | None, kv_bytes: int = RESTART_BYTES) -> EngineCore:
    """Start an engine; file: in which its blocks outlive it."""
    given = {"model": model, "max_model_len": 2048, "max_num_seqs": 32, "kv_cache_memory_bytes": kv_bytes}
    given |= {"use_tqdm_on_load": False, "keep_kv": file is not None, "dtype": "bfloat16"}
    config = resolve(given, context="serve", environ={}).engine
    return build_engine(msgspec.structs.replace(config, kv_file=file), UniprocExecutor, {})


def prompt(length: int) -> list[int]:
    """A prompt that was not used before."""
    return [random.randrange(5, 40000) for _ in range(length)]


def seconds(core: EngineCore, prompts: list[list[int]], max_tokens: int) -> float:
    """Compute requests, then be idle; the idle time does not count."""
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    begin = time.perf_counter()
    core.add([EngineRequest(f"r{index}", 0, ids, params, seed=1) for index, ids in enumerate(prompts)])
    while core.has_work():
        core.step()
    end = time.perf_counter()
    while core.idle() is not None:
        pass
    return end - begin


def main() -> None:
    """Print the table and the restart."""
    model = sys.argv[1]
    file = anonymous_file("benchmark-kv", 0)
    engines = {"plain": start(model, None, STEPS_BYTES), "kept": start(model, file, STEPS_BYTES)}
    for core in engines.values():
        for _ in range(8):
            seconds(core, [prompt(1900)], 1)
    for name, (streams, length, answer) in SCENARIOS.items():
        taken: dict[str, list[float]] = {one: [] for one in engines}
        for turn in range(ROUNDS + 1):
            for one in sorted(engines, reverse=bool(turn % 2)):
                found = seconds(engines[one], [prompt(length) for _ in range(streams)], answer)
                if turn:
                    taken[one].append(found)
        plain, kept = (statistics.median(taken[one]) for one in ("plain", "kept"))
        ratios = statistics.median(b / a for a, b in zip(taken["plain"], taken["kept"], strict=True))
        print(f"{name}: plain {plain:.4f} s, kept {kept:.4f} s, median ratio {ratios:.4f}", flush=True)
    engines.clear()
    restart(model, file)
    os.close(file)


def restart(model: str, file: int) -> None:
    """Fill the file, and compare the start of engines with and without it."""
    core = start(model, file)
    known = [prompt(1900) for _ in range(24)]
    for ids in known:
        seconds(core, [ids], 1)
    gigabytes = len(known) * 118 * core.executor.page_bytes / 1e9
    starts: dict[str, list[float]] = {"empty": [], "kept": []}
    for _ in range(5):
        for one, place in (("empty", None), ("kept", file)):
            del core
            gc.collect()
            begin = time.perf_counter()
            core = start(model, place)
            starts[one].append(time.perf_counter() - begin)
    empty, kept = (statistics.median(found) for found in starts.values())
    first = seconds(core, known, 1)
    again = statistics.median(seconds(core, known, 1) for _ in range(3))
    shares = f"{(kept - empty) / gigabytes:.3f} and {(first - again) / gigabytes:.3f} s a GB"
    print(
        f"{gigabytes:.2f} GB kept: start {empty:.3f}, then {kept:.3f} s; answers {first:.3f}, again {again:.3f} s; {shares}"
    )
    print(f"hits: {core.scheduler.kv.num_hit_tokens // 4} of {24 * 1888} tokens")


if __name__ == "__main__":
    main()
