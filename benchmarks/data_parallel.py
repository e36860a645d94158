"""Two engines of one thread each against one engine of two threads: `python -m benchmarks.data_parallel`.

The same requests, whose prompts share beginnings in groups, one way after the other in turns. Printed: tokens a second, prefix
tokens that were cached, and how the output tokens are spread over the engines.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from typing import Any

from core import AsyncLLM, SamplingParams


def prompts(groups: int, each: int, shared: int, own: int, seed: int) -> list[list[int]]:
    """Return `groups * each` prompts, in a random order. shared, own: tokens."""
    rng = random.Random(seed)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(1000, 30_000) for _ in range(count)]

    beginnings = [tokens(shared) for _ in range(groups)]
    made = [[*beginning, *tokens(own)] for beginning in beginnings for _ in range(each)]
    rng.shuffle(made)
    return made


async def run(llm: AsyncLLM, batch: list[list[int]], count: int, name: str) -> float:
    """Return the seconds in which all prompts get `count` tokens."""
    params = SamplingParams(max_tokens=count, ignore_eos=True, temperature=0.0)

    async def one(index: int, tokens: list[int]) -> None:
        async for _ in llm.generate({"prompt_token_ids": tokens}, params, f"{name}-{index}"):
            pass

    begin = time.perf_counter()
    await asyncio.gather(*(one(index, tokens) for index, tokens in enumerate(batch)))
    return time.perf_counter() - begin


async def measure(options: argparse.Namespace) -> None:
    """Print the medians."""
    ways: dict[str, dict[str, Any]] = {
        "one": {"platform_config": {"threads": options.threads}},
        "group": {
            "platform_config": {"threads": options.threads // options.engines},
            "data_parallel_size": options.engines,
        },
    }
    engines: dict[str, AsyncLLM] = {}
    for way, arguments in ways.items():
        engines[way] = AsyncLLM(options.model, max_num_seqs=options.seqs, **arguments)
        await engines[way].start()
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    shares: list[float] = []
    hits: dict[str, list[int]] = {way: [] for way in ways}
    for turn in range(options.turns + 1):
        batch = prompts(options.groups, options.each, options.shared, options.own, turn)
        for way, llm in engines.items():
            engine = llm._engine
            assert engine is not None
            before, parts = engine.stats.prefix_hits, [stats.prefix_queries for stats in engine.stats_of_engines]
            took = await run(llm, batch, options.count, f"{way}-{turn}")
            if turn == 0:
                continue  # warms up
            seconds[way].append(took)
            hits[way].append(engine.stats.prefix_hits - before)
            if parts:
                now = [stats.prefix_queries - old for stats, old in zip(engine.stats_of_engines, parts, strict=True)]
                shares.append(max(now) / statistics.mean(now) - 1.0)
    for llm in engines.values():
        llm.shutdown()
    total = options.groups * options.each * options.count
    for way in ways:
        print(
            f"{way}: {total / statistics.median(seconds[way]):.1f} tokens/s, {statistics.median(hits[way])} prefix tokens hit"
        )
    ratios = [one / group for one, group in zip(seconds["one"], seconds["group"], strict=True)]
    found = statistics.median(hits["group"]) / max(statistics.median(hits["one"]), 1)
    print(
        f"group/one: throughput {statistics.median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f}), hits {found:.3f}"
    )
    print(f"the engine with most prompt tokens has {statistics.median(shares):.1%} more than the mean")


def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--seqs", type=int, default=64)
    parser.add_argument("--groups", type=int, default=12)
    parser.add_argument("--each", type=int, default=8)
    parser.add_argument("--shared", type=int, default=256)
    parser.add_argument("--own", type=int, default=32)
    parser.add_argument("--count", type=int, default=32)
    parser.add_argument("--turns", type=int, default=5)
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
