"""What `--keep-kv` costs, in process: steps beside an engine without it, and the start of the engine after a death.

Run: `python -m benchmarks.kept_kv MODEL`. Rounds of two engines alternate; medians and their ratio. The restart is that of an
engine on the file of one that was left without an end: adoption counts in its start, checksums in its first answer.
"""

from __future__ import annotations

import os
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

ROUNDS = 7
GIB = 1 << 30
SCENARIOS = {"one stream": (1, 30, 96), "one prompt": (1, 1500, 1), "many": (24, 60, 24)}
"""Streams, tokens of each prompt, tokens of each answer."""
number = 0


def start(model: str, file: int | None) -> EngineCore:
    """Start an engine; file: in which its blocks outlive it."""
    given = {"model": model, "max_model_len": 2048, "max_num_seqs": 32, "kv_cache_memory_bytes": 3 * GIB // 2}
    given |= {"use_tqdm_on_load": False, "keep_kv": file is not None, "dtype": "bfloat16"}
    config = resolve(given, context="serve", environ={}).engine
    return build_engine(msgspec.structs.replace(config, kv_file=file), UniprocExecutor, {})


def prompt(length: int) -> list[int]:
    """A prompt that was not used before."""
    global number
    number += 1
    return [5 + (number * 7919 + place * (number % 97 + 1)) % 40000 for place in range(length)]


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
    engines = {"plain": start(model, None), "kept": start(model, file)}
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
    restart(model, file, engines)
    os.close(file)


def restart(model: str, file: int, engines: dict[str, EngineCore]) -> None:
    """Fill the file, and compare the start of engines with and without it."""
    known = [prompt(1900) for _ in range(16)]
    for ids in known:
        seconds(engines["kept"], [ids], 1)
    gigabytes = 16 * 1888 * engines["kept"].executor.page_bytes / 16 / 1e9
    starts = {"empty": [], "kept": []}
    for _ in range(3):
        for one, place in (("empty", None), ("kept", file)):
            begin = time.perf_counter()
            following = start(model, place)
            starts[one].append(time.perf_counter() - begin)
    empty, kept = (statistics.median(found) for found in starts.values())
    params = SamplingParams(max_tokens=1, temperature=0.0)
    begin = time.perf_counter()
    following.add([EngineRequest(f"r{index}", 0, ids, params, seed=1) for index, ids in enumerate(known)])
    while following.has_work():
        following.step()
    first = time.perf_counter() - begin
    again = seconds(following, known, 1)
    cached = following.scheduler.kv.num_hit_tokens
    print(f"start: {empty:.2f} s, with {gigabytes:.2f} GB kept {kept:.2f} s ({(kept - empty) / gigabytes:.3f} s a GB)")
    print(f"first answers {first:.3f} s, again {again:.3f} s: {(first - again) / gigabytes:.3f} s a GB; hits {cached}")


if __name__ == "__main__":
    main()
