"""Speed with adapters: next to our own base, next to other engines, and of base traffic with idle adapters.

Owns: the rows `speed` and `idle`. Never does: write files, or start a process itself. Called by: `benchmarks.adapters`.

One stream (S1) has an adapter of rank 16; 64 requests at once (S3) have eight adapters of ranks 8 to 64 in turns. Our engine
answers without and with adapters in turns of one process. Only one process runs at a time.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from benchmarks.adapter_place import ENABLED, RANKS, Place, Record, standard_names
from benchmarks.pairs import interval
from benchmarks.peer.contenders import Contender
from benchmarks.peer.environment import PeerError
from benchmarks.peer.process import Worker

SIZES = {"S1": (1, 16, 128), "S3": (64, 16, 64)}
"""Requests, and tokens in and out of each."""
TURNS = {"S1": 4, "S3": 2}
"""Of our engine without and with adapters, in each round."""
SHARES = {("bf16", "S1"): 0.92, ("Q4_1", "S1"): 0.85, ("bf16", "S3"): 0.85, ("Q4_1", "S3"): 0.85}
BESIDE = {"vLLM bf16": 2.0, "llama.cpp bf16": 2.0}
FIRST_TOKEN_S = 0.15
PAIRS = 15
PEERS = {
    "vllm": Contender("vLLM bf16", "vllm", "bf16", {"enable_lora": True, "max_loras": 8, "max_lora_rank": 64}),
    "llama.cpp": Contender("llama.cpp bf16", "llama.cpp", "gguf-bf16"),
    "transformers": Contender("transformers bf16", "transformers", "bf16"),
}
SCENARIOS = ("S1", "load", "S3")
LEFT_OUT = {("transformers", "S3"), ("llama.cpp", "load")}
"""transformers applies one adapter to a whole batch, and 64 requests take it minutes. llama.cpp's server loads adapters at
its start alone.
"""

Seconds = dict[tuple[str, str], list[float]]
"""Of each repetition, by scenario and `base`, `adapters` or `load`."""


def speed(place: Place, forms: list[str], peers: list[str], scenarios: list[str]) -> Iterator[Record]:
    """Yield a row for each engine and scenario."""
    engines = [place.core(form, "adapters", **ENABLED) for form in forms] + [PEERS[peer] for peer in peers]
    found: dict[str, Seconds] = {engine.name: {} for engine in engines}
    failures: dict[tuple[str, str], str] = {}
    for repetition in range(place.repeats + 1):
        for engine in engines:
            if place.is_over and found[engine.name]:
                continue
            for scenario in scenarios:
                if (engine.name, scenario) in failures or (engine.peer, scenario) in LEFT_OUT:
                    continue
                try:
                    with place.fleet.worker(engine.name, place.worker(engine)) as worker:
                        _round(place, engine, scenario, worker, found[engine.name], repetition)
                except PeerError as error:
                    failures[engine.name, scenario] = str(error)
    for engine in engines:
        yield from _rows(engine, found)
        for (name, scenario), error in failures.items():
            if name == engine.name:
                yield {"row": "speed", "engine": name, "scenario": scenario, "error": error}


def _round(place: Place, engine: Contender, scenario: str, worker: Worker, seconds: Seconds, repetition: int) -> None:
    """Measure an engine once; the round before the first is short and does not count."""
    if scenario == "load":
        answer = worker.ask(place.requests(1, 16, 1, [place.fresh(16)]), place.limit)
        if repetition:
            seconds.setdefault((scenario, scenario), []).append(answer["seconds"])
        return
    kinds = ["base", "adapters"] if engine.peer == "core" else ["adapters"]
    if repetition % 2:
        kinds.reverse()
    count, given, wanted = SIZES[scenario]
    names = standard_names() if scenario == "S3" else ["adapter0"]
    for kind in kinds * (TURNS[scenario] if engine.peer == "core" and repetition else 1):
        used = names if kind == "adapters" else None
        request = place.requests(count, given, wanted if repetition else 8, used)
        answer = worker.ask(request, place.limit)
        if repetition:
            seconds.setdefault((scenario, kind), []).append(answer["seconds"])


def _rows(engine: Contender, found: dict[str, Seconds]) -> Iterator[Record]:
    seconds = found[engine.name]
    ours = next((value for name, value in found.items() if name.startswith("core bf16")), {})
    title = " ".join(engine.name.split()[:2])
    for scenario, (count, _, wanted) in SIZES.items():
        mine = seconds.get((scenario, "adapters"))
        if not mine:
            continue
        record: Record = {"row": "speed", "engine": title, "scenario": scenario, "rounds": len(mine)}
        record["tokens_per_s"] = round(count * wanted / statistics.median(mine), 1)
        base = seconds.get((scenario, "base"))
        if base:
            share = statistics.median(base) / statistics.median(mine)
            bar = SHARES[title.split()[1], scenario]
            record |= {
                "base_tokens_per_s": round(count * wanted / statistics.median(base), 1),
                "of_base": round(share, 3),
            }
            record |= {"bar": f"at least {bar} of our base", "met": share >= bar}
        elif ours.get((scenario, "adapters")):
            factor = statistics.median(mine) / statistics.median(ours[scenario, "adapters"])
            record["core_is_times_as_fast"] = round(factor, 2)
            if title in BESIDE:
                record |= {"bar": f"core at least {BESIDE[title]:g} times as fast", "met": factor >= BESIDE[title]}
        yield record
    loads = seconds.get(("load", "load"))
    if loads:
        middle = statistics.median(loads)
        record = {"row": "load", "engine": title, "rank": 16, "first_token_ms": round(middle * 1e3, 1)}
        if engine.peer == "core":
            record |= {"bar": f"at most {FIRST_TOKEN_S * 1e3:g} ms", "met": middle <= FIRST_TOKEN_S}
        yield record


def idle(place: Place, forms: list[str]) -> Iterator[Record]:
    """Yield the base traffic of an engine with eight idle adapters next to one without the switch, in pairs."""
    for form in forms:
        sides = [place.core(form, "base"), place.core(form, "idle adapters", **ENABLED)]
        launches = [place.worker(side) for side in sides]
        with place.fleet.worker(sides[1].name, launches[1]) as worker:
            worker.ask(place.requests(len(RANKS), 16, 1, standard_names()), place.limit)
        for scenario, (count, given, wanted) in {"S1": (1, 16, 96), "S3": (64, 16, 32)}.items():
            seconds: list[list[float]] = [[], []]
            for pair in range(PAIRS + 1):
                if place.is_over and len(seconds[0]) > 1:
                    break
                request = place.requests(count, given, wanted)
                for index in (0, 1) if pair % 2 else (1, 0):
                    with place.fleet.worker(sides[index].name, launches[index]) as worker:
                        answer = worker.ask(dict(request), place.limit)
                    if pair:
                        seconds[index].append(answer["seconds"])
            ratios = [without / with_idle for without, with_idle in zip(*seconds, strict=True)]
            middle = statistics.median(ratios)
            yield {
                "row": "idle",
                "engine": f"core {form}",
                "scenario": scenario,
                "pairs": len(ratios),
                "of_engine_without_switch": round(middle, 4),
                "mean_and_interval": interval(ratios),
                "bar": "at least 0.99",
                "met": middle >= 0.99,
            }
