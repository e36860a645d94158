"""What the states that are kept at block edges cost decode: an engine that keeps them beside one without a prefix cache.

Run: `python -m benchmarks.kv_edges MODEL [STREAMS]`, a model with states, such as the one that `python -m benchmarks.agents`
writes for `gdn`. Rounds of the two engines alternate; medians of the time of a step, and of their ratio. The bar is 1.01.
"""

from __future__ import annotations

import random
import statistics
import sys
import time

from core.api.messages import EngineRequest
from core.api.sampling_params import SamplingParams
from core.engine.composition import build_engine
from core.engine.core import EngineCore
from core_config.resolve import resolve
from core_runtime.executor.uniproc import UniprocExecutor

ROUNDS = 15
PROMPT, ANSWER = 40, 160
"""Tokens of a prompt, and of an answer, which passes ten edges of 16 tokens."""


def start(model: str, *, keeps: bool) -> EngineCore:
    """Start an engine; keeps: whether it has a prefix cache, and so keeps states."""
    given = {"model": model, "max_model_len": 512, "max_num_seqs": 16, "kv_cache_memory_bytes": 1 << 30}
    given |= {"use_tqdm_on_load": False, "enable_prefix_caching": keeps, "dtype": "bfloat16"}
    return build_engine(resolve(given, context="serve", environ={}).engine, UniprocExecutor, {})


def token_seconds(core: EngineCore, streams: int) -> float:
    """Seconds of a decode step: answers to new prompts, from the first token of all of them on."""
    params = SamplingParams(max_tokens=ANSWER, temperature=0.0, ignore_eos=True)
    prompts = [[random.randrange(5, 250) for _ in range(PROMPT)] for _ in range(streams)]
    core.add([EngineRequest(f"r{index}", 0, ids, params, seed=1) for index, ids in enumerate(prompts)])
    for _ in range(2 + streams * PROMPT // 64):
        core.step()
    begin, count = time.perf_counter(), 0
    while core.has_work():
        core.step()
        count += 1
    return (time.perf_counter() - begin) / count


def main() -> None:
    """Print both medians and the ratio."""
    model, streams = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1
    engines = {"without a cache": start(model, keeps=False), "edges kept": start(model, keeps=True)}
    taken: dict[str, list[float]] = {name: [] for name in engines}
    for turn in range(ROUNDS + 1):
        for name in sorted(engines, reverse=bool(turn % 2)):
            found = token_seconds(engines[name], streams)
            if turn:
                taken[name].append(found)
    for name, found_s in taken.items():
        print(f"{name}: {1e3 * statistics.median(found_s):.3f} ms a step of {streams}")
    pairs = zip(taken["without a cache"], taken["edges kept"], strict=True)
    print(f"median ratio: {statistics.median(kept / plain for plain, kept in pairs):.4f}")


if __name__ == "__main__":
    main()
