"""What `--keep-kv` costs, in process: steps beside an engine without it, and the start of the engine after a death.

Run: `python -m benchmarks.kept_kv [MODEL]`. Without MODEL it is one with the widths of SmolLM2 135M and `--layers` layers, and
it takes a minute or two on two cores. Rounds of two engines alternate; medians and their ratio, by the clock and in processor
seconds of all threads. The restart is that of an engine on the file of one that was left without an end: adoption counts in
its start, checksums in its first answer. The bar of a restart is 0.1 s a GB.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import statistics
import tempfile
import time
from pathlib import Path

import msgspec

from benchmarks.agents.models import short_path
from core.api.messages import EngineRequest
from core.api.sampling_params import SamplingParams
from core.engine.composition import build_engine
from core.engine.core import EngineCore
from core_config.resolve import resolve
from core_runtime.executor.uniproc import UniprocExecutor
from core_supervision.link.anonymous_file import anonymous_file

STARTS = 5
STEPS_BYTES = 256 << 20
"""Cache of the engines whose steps are timed: it is full after the first rounds, so that blocks are evicted all the time."""
RESTART_BYTES = 1 << 30
PROMPT = 1900
"""Tokens of the prompts that fill a cache."""
SCENARIOS = {"one stream": (1, 30, 96), "one prompt": (1, 1500, 1), "many": (24, 60, 24)}
"""Streams, tokens of each prompt, tokens of each answer."""


def start(model: str, file: int | None, kv_bytes: int) -> EngineCore:
    """Start an engine; file: in which its blocks outlive it."""
    given = {"model": model, "max_model_len": 2048, "max_num_seqs": 32, "kv_cache_memory_bytes": kv_bytes}
    given |= {"use_tqdm_on_load": False, "keep_kv": file is not None, "dtype": "bfloat16"}
    config = resolve(given, context="serve", environ={}).engine
    return build_engine(msgspec.structs.replace(config, kv_file=file), UniprocExecutor, {})


def prompt(length: int) -> list[int]:
    """A prompt that was not used before."""
    return [random.randrange(5, 30000) for _ in range(length)]


def seconds(core: EngineCore, prompts: list[list[int]], max_tokens: int) -> tuple[float, float]:
    """Compute requests, then be idle; returns seconds by the clock and of processors, without the idle time."""
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    begin, busy = time.perf_counter(), time.process_time()
    core.add([EngineRequest(f"r{index}", 0, ids, params, seed=1) for index, ids in enumerate(prompts)])
    while core.has_work():
        core.step()
    taken = time.perf_counter() - begin, time.process_time() - busy
    while core.idle() is not None:
        pass
    return taken


def steps(model: str, file: int, rounds: int) -> None:
    """Compare the steps of engines with and without the file."""
    engines = {"plain": start(model, None, STEPS_BYTES), "kept": start(model, file, STEPS_BYTES)}
    for core in engines.values():
        # Until the cache is full.
        for _ in range(STEPS_BYTES // (core.executor.page_bytes * (PROMPT // 16)) + 1):
            seconds(core, [prompt(PROMPT)], 1)
    for name, (streams, length, answer) in SCENARIOS.items():
        taken: dict[str, list[tuple[float, float]]] = {one: [] for one in engines}
        for turn in range(rounds + 1):
            for one in sorted(engines, reverse=bool(turn % 2)):
                found = seconds(engines[one], [prompt(length) for _ in range(streams)], answer)
                if turn:
                    taken[one].append(found)
        for place, unit in enumerate(("by the clock", "of processors")):
            plain, kept = ([row[place] for row in taken[one]] for one in ("plain", "kept"))
            ratio = statistics.median(b / a for a, b in zip(plain, kept, strict=True))
            medians = f"plain {statistics.median(plain):.4f}, kept {statistics.median(kept):.4f}"
            print(f"{name}, s {unit}: {medians}, median ratio {ratio:.4f}", flush=True)


def restart(model: str, file: int, kept_bytes: int) -> None:
    """Fill the file, and compare the start of engines with and without it. Of prompts that are known, one token is computed."""
    core = start(model, file, kept_bytes + (kept_bytes >> 3))
    num_blocks = PROMPT // 16
    known = [prompt(PROMPT) for _ in range(kept_bytes // (core.executor.page_bytes * num_blocks))]
    for ids in known:
        seconds(core, [ids], 1)
    gigabytes = len(known) * num_blocks * core.executor.page_bytes / 1e9
    starts: dict[str, list[tuple[float, float]]] = {"empty": [], "kept": []}
    for _ in range(STARTS):
        for one, place in (("empty", None), ("kept", file)):
            del core
            gc.collect()
            begin, busy = time.perf_counter(), time.process_time()
            core = start(model, place, kept_bytes + (kept_bytes >> 3))
            starts[one].append((time.perf_counter() - begin, time.process_time() - busy))
    first = seconds(core, known, 1)
    later = [seconds(core, known, 1) for _ in range(3)]
    for place, unit in enumerate(("by the clock", "of processors")):
        empty, kept = (statistics.median(row[place] for row in starts[one]) for one in ("empty", "kept"))
        again = statistics.median(row[place] for row in later)
        shares = f"{(kept - empty) / gigabytes:.3f} and {(first[place] - again) / gigabytes:.3f} s a GB"
        print(
            f"{gigabytes:.2f} GB kept, s {unit}: start {empty:.3f}, then {kept:.3f}; answers {first[place]:.3f}, "
            f"again {again:.3f}; {shares}"
        )
    hits, expected = core.scheduler.kv.num_hit_tokens // 4, len(known) * num_blocks * 16
    print(f"hits: {hits} of {expected} tokens")
    if hits < 0.99 * expected:
        raise SystemExit("The figures are not those of kept blocks.")


def main() -> None:
    """Print the table and the restart."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kept_kv", description=__doc__)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--layers", type=int, default=6, help="of the model that is written where none is named")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--kept-bytes", type=int, default=RESTART_BYTES >> 2, help="of blocks that outlive an engine")
    parser.add_argument("--only", choices=("steps", "restart"))
    given = parser.parse_args()
    file = anonymous_file("benchmark-kv", 0)
    with tempfile.TemporaryDirectory(prefix="kept-kv-") as folder:
        model = given.model or str(short_path("dense", given.layers, Path(folder)))
        if given.only != "restart":
            steps(model, file, given.rounds)
        if given.only != "steps":
            restart(model, file, given.kept_bytes)
    os.close(file)


if __name__ == "__main__":
    main()
