"""How long running streams wait while an adapter is loaded, over HTTP: our server and vLLM's.

Owns: the row `stall`. Never does: measure throughput. Called by: `benchmarks.adapters`.

Eight streams run. After a quiet time adapters are loaded one after the other. The figure is the longest gap between two
tokens of any stream that overlaps a load, less the 99th percentile of the gaps before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from benchmarks.adapter_place import FORMS, Place, Record
from benchmarks.peer.contenders import Contender
from benchmarks.peer.environment import PeerError
from benchmarks.peer.process import Launch
from benchmarks.startup import Server, ServerError, free_port
from benchmarks.streaming import complete, percentile

STREAMS, QUIET_S, APART_S = 8, 4.0, 0.7
ALLOWED_MS = 20.0
RANK = 64
START_LIMIT_S = 180.0
TOKENS = {"core": 1400, "vllm": 900}
"""Of each stream: they must outlast the loads."""
Gap = tuple[float, float]
"""Begin and end."""


@dataclass
class Times:
    """gaps: of all streams, from when the last one has begun. loads: begin and end of each."""

    gaps: list[Gap]
    loads: list[Gap]


def stall(place: Place, forms: list[str], peers: list[str]) -> Iterator[Record]:
    """Yield a row for each server."""
    engines = [place.core(form, "stall") for form in forms]
    if "vllm" in peers:
        engines.append(Contender("vLLM bf16", "vllm", FORMS["bf16"]))
    for engine in engines:
        title = " ".join(engine.name.split()[:2])
        try:
            times = _measured(place, engine)
        except (ServerError, PeerError) as error:
            yield {"row": "stall", "engine": title, "error": str(error)}
            continue
        first = times.loads[0][0]
        usual = percentile([end - begin for begin, end in times.gaps if end <= first], 99)
        longest = max(_overlapping(times))
        over = (longest - usual) * 1e3
        record: Record = {
            "row": "stall",
            "engine": title,
            "rank": RANK,
            "loads": len(times.loads),
            "load_ms": round(sum(end - begin for begin, end in times.loads) / len(times.loads) * 1e3, 1),
            "usual_p99_ms": round(usual * 1e3, 1),
            "longest_ms": round(longest * 1e3, 1),
            "over_usual_ms": round(over, 1),
        }
        if engine.peer == "core":
            record |= {"bar": f"at most {ALLOWED_MS:g} ms over the usual p99", "met": over <= ALLOWED_MS}
        yield record


def _overlapping(times: Times) -> Iterator[float]:
    for begin, end in times.gaps:
        if any(begin < stop and start < end for start, stop in times.loads):
            yield end - begin


def _measured(place: Place, engine: Contender) -> Times:
    port = free_port()
    launch = _launch(place, engine, port)
    log = place.log(f"stall-{engine.peer}-{engine.form}")
    with Server(launch.command, port, environment=launch.environment, start_limit_s=START_LIMIT_S, log=log) as server:
        names = [place.fresh(RANK) for _ in range(place.repeats)]
        asyncio.run(_run(place, server, names[:1], 64))
        return asyncio.run(_run(place, server, names[1:], TOKENS[engine.peer]))


def _launch(place: Place, engine: Contender, port: int) -> Launch:
    launch = place.launches.server(engine, port)
    words = ["--enable-lora", "--max-loras", "8", "--max-cpu-loras", "16", "--max-lora-rank", str(RANK)]
    if engine.peer == "core":
        words += ["--allow-runtime-lora-updating", "--lora-directory", str(place.files)]
        return replace(launch, command=[*launch.command, *words])
    environment = launch.environment | {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}
    return Launch([*launch.command, *words], environment)


async def _run(place: Place, server: Server, names: list[str], tokens: int) -> Times:
    """Run the streams and load adapters next to them."""
    starts: list[float] = []
    loads: list[Gap] = []

    async def one(prompt: list[int]) -> list[float]:
        begin = time.perf_counter()
        stream = await complete(server.base, server.model, prompt, tokens)
        starts.append(begin + stream.arrivals[0])
        return [begin + arrival for arrival in stream.arrivals]

    async def load() -> None:
        await asyncio.sleep(QUIET_S if len(names) > 1 else 0.1)
        for name in names:
            begin = time.perf_counter()
            await asyncio.to_thread(_load, server, str(place.files / name), name)
            loads.append((begin, time.perf_counter()))
            await asyncio.sleep(APART_S)

    *arrivals, _ = await asyncio.gather(*(one(prompt) for prompt in place.maker.batch(STREAMS, 16)), load())
    all_run = max(starts)
    end = min(stream[-1] for stream in arrivals)
    if len(names) > 1 and end < loads[-1][1]:
        raise ServerError(f"The streams ended {loads[-1][1] - end:.1f} s before the last load; give them more tokens.")
    gaps = [pair for stream in arrivals for pair in pairwise(stream)]
    return Times([(begin, stop) for begin, stop in gaps if begin >= all_run and stop <= end], loads)


def _load(server: Server, path: str, name: str) -> None:
    """Load an adapter; vLLM answers with words that are no JSON."""
    try:
        server.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": path})
    except ValueError:
        return
