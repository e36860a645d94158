"""Benchmark of engine startup, from process creation to the first token.

Owns: the starts and their phases. Never does: print, or drop the system's page cache. Called by: `core bench startup`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from core_commands.bench.offline_options import StartupOptions
from core_commands.bench.progress import progress
from core_commands.client.early_engine import spawn_early
from core_commands.client.endpoint import Endpoint, EndpointError, whole
from core_commands.client.own_engine import own_endpoint, resolved

if TYPE_CHECKING:
    from core_config.arguments.parser import Parsed

FIRST_REQUEST = {"prompt": [1], "max_tokens": 1, "temperature": 0}


def startup(options: StartupOptions, parsed: Parsed) -> dict[str, Any]:
    """Measure seconds of several starts, each in a new process. Raises UserError."""
    resolved(parsed)  # reports mistakes before anything is measured
    every: list[dict[str, float]] = []
    with progress(1 + options.num_iters, "start") as advance:
        for _ in range(1 + options.num_iters):
            every.append(asyncio.run(_start(parsed)))
            advance()
    first, *starts = every
    mean = {name: sum(start[name] for start in starts) / len(starts) for name in first}
    return {
        "first_startup_time": first["ready"],
        "avg_startup_time": mean["ready"],
        "avg_first_token_time": mean["first_token"],
        "startup_times": [start["ready"] for start in starts],
        "first_token_times": [start["first_token"] for start in starts],
    }


async def _start(parsed: Parsed) -> dict[str, float]:
    """Return the seconds until requests are accepted, and until the first token."""
    begin = time.perf_counter()
    process = spawn_early(parsed.values)
    try:
        async with own_endpoint(resolved(parsed), process) as endpoint:
            ready = time.perf_counter() - begin
            await _first_token(endpoint)
            return {"ready": ready, "first_token": time.perf_counter() - begin}
    finally:
        process.discard()


async def _first_token(endpoint: Endpoint) -> None:
    async with endpoint.ask("POST", "/v1/completions", msgspec.json.encode(FIRST_REQUEST)) as answer:
        text = await whole(answer)
    if answer.status != 200:
        raise EndpointError(f"The engine started, but its first request failed: {text.decode(errors='replace')[:500]}")


def startup_rows(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Format the startup result as table rows."""
    return [
        ("First start (s)", f"{result['first_startup_time']:.2f}"),
        ("Mean of later starts (s)", f"{result['avg_startup_time']:.2f}"),
        ("Mean until the first token (s)", f"{result['avg_first_token_time']:.2f}"),
    ]
