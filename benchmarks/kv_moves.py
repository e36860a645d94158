"""How long a stream pauses when its engine is drained: `python -m benchmarks.kv_moves`.

Owns: two engines of one group, a stream that one of them computes, and the time between its last token there and the first one
of the other engine, with its blocks and without. Never does: compare with another engine, or check tokens (tests do).

Both ways alternate. Each engine has one thread, and nothing else runs in them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from typing import Any
from unittest import mock

from core.api.sampling_params import RequestOutputKind, SamplingParams
from core_config.resolve import resolve
from core_frontend.async_engine import AsyncEngine
from core_frontend.group import moves as moves_module
from core_frontend.group.comparison import Comparison
from core_platforms.cpu.processors import processor_name

WAYS = {"moved": Comparison(1e9, 0.0), "computed": Comparison(0.0, 1e9)}
BEFORE, AFTER = 40, 24
"""Tokens of the answer before its engine is drained, and after."""


async def pause_ms(engine: AsyncEngine, prompt: list[int], name: str) -> tuple[float, str]:
    """Drain the engine of a stream; returns the milliseconds of its pause, and how it went on."""
    moves = engine.moves
    assert moves is not None, "it is a group"
    params = SamplingParams(
        max_tokens=BEFORE + AFTER, ignore_eos=True, temperature=0.0, output_kind=RequestOutputKind.DELTA
    )
    drain: asyncio.Task[Any] | None = None
    latest = longest = 0.0
    async for _ in engine.generate({"prompt_token_ids": prompt}, params, name):
        now = time.perf_counter()
        if drain is not None:
            longest = max(longest, now - latest)
        latest = now
        state = engine._live.states.find(name)
        if drain is None and state is not None and state.num_given().get(0, 0) >= BEFORE:
            home = engine._client.place_of(name)  # type: ignore[union-attr]
            drain = asyncio.create_task(moves.drain(home))
    assert drain is not None, "it had enough tokens"
    found = await drain
    await moves.undrain(found.engine)
    await engine.reset_prefix_cache()
    return longest * 1e3, "moved" if found.moved else "computed"


async def measured(options: argparse.Namespace) -> dict[str, list[float]]:
    """Return the pauses of both ways."""
    role = {"kv_connector": "tcp", "kv_role": "kv_both", "kv_port": options.port}
    given = {
        "max_model_len": 8192,
        "data_parallel_size": 2,
        "platform_config": {"threads": 1},
        "kv_transfer_config": role,
        "kv_cache_memory_bytes": "512M",
        **({"model": options.model} if options.model else {}),
    }
    engine = await AsyncEngine.start(resolve(given, context="serve", environ={}))
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    try:
        for turn in range(options.turns + 1):
            drawn = random.Random(turn)
            prompt = [drawn.randrange(300, 30_000) for _ in range(options.tokens)]
            for way, comparison in WAYS.items():
                with mock.patch.object(moves_module, "compare", lambda *facts, chosen=comparison, **more: chosen):
                    pause, how = await pause_ms(engine, prompt, f"{way} {turn}")
                if how != way:
                    raise SystemExit(f"A stream was {how}, and should have been {way}.")
                if turn:  # the first one warms up
                    times[way].append(pause)
    finally:
        await engine.close()
    return times


def main() -> None:
    """Measure and print medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="default: the embedded model")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--port", type=int, default=8321)
    options = parser.parse_args()
    times = asyncio.run(measured(options))
    medians = {way: round(statistics.median(values), 1) for way, values in times.items()}
    facts = {"processor": processor_name(), "tokens": options.tokens, "turns": options.turns, "pause, ms": medians}
    print(json.dumps(facts | {"all": {way: [round(value, 1) for value in values] for way, values in times.items()}}))


if __name__ == "__main__":
    main()
