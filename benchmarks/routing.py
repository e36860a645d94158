"""Simulation of many engines behind many fronts, with the code that chooses: `python -m benchmarks.routing`.

A thousand engines get 10,000 requests a second from 32 fronts that see their loads 100 ms late. A request has one of
20,000 prefixes, by Zipf's law, and a tail of its own; an engine computes one request after another, and caches some
prefixes. Printed for each rule: prefix tokens found in a cache, waits, how busy engines are, and microseconds a choice.
"""

from __future__ import annotations

import argparse
import heapq
import random
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from core_frontend.group.router import Router

VIEW_S = 0.1
"""Age of the loads that fronts see."""
WARM_S = 5.0
"""Seconds at the beginning that do not count."""


@dataclass(frozen=True)
class World:
    """What is simulated. cached: prefixes that an engine holds. rate: prompt tokens a second of an engine."""

    engines: int = 1000
    fronts: int = 32
    requests_per_s: float = 10_000.0
    prefixes: int = 20_000
    zipf: float = 0.9
    prefix_tokens: int = 2048
    tail_tokens: int = 128
    cached: int = 24
    rate: float = 21_000.0
    seconds: float = 25.0

    @property
    def prefix_s(self) -> float:
        """Seconds of computing a prefix."""
        return self.prefix_tokens / self.rate

    @property
    def tail_s(self) -> float:
        """Seconds of computing what follows it."""
        return self.tail_tokens / self.rate


@dataclass
class Engine:
    """One engine. free_at: when it has computed everything that it was sent."""

    free_at: float = 0.0
    busy_s: float = 0.0
    cache: OrderedDict[int, None] = field(default_factory=OrderedDict)

    def take(self, prefix: int, now: float, world: World) -> tuple[float, bool]:
        """Return the wait of a request, and whether its prefix was cached."""
        wait = max(self.free_at - now, 0.0)
        hit = prefix in self.cache
        cost = world.tail_s + (0.0 if hit else world.prefix_s)
        self.cache[prefix] = None
        self.cache.move_to_end(prefix)
        if len(self.cache) > world.cached:
            self.cache.popitem(last=False)
        self.free_at = now + wait + cost
        self.busy_s += cost
        return wait, hit


@dataclass
class Seen:
    """What one front knows. waits: by engine, as last reported. router: what it has sent itself."""

    router: Router
    waits: list[float]
    open: list[tuple[float, int, float]] = field(default_factory=list)


Rule = Callable[[Seen, int, random.Random], int]


def by_router(seen: Seen, key: int, rng: random.Random) -> int:
    """Choose by the real code."""
    return seen.router.choose((key,), (0.0,))[0]


def by_hash(seen: Seen, key: int, rng: random.Random) -> int:
    """Choose the first home, however much it has to do."""
    return seen.router.homes(key)[0]


def by_two(seen: Seen, key: int, rng: random.Random) -> int:
    """Choose the less loaded of two at random."""
    one, other = rng.randrange(len(seen.waits)), rng.randrange(len(seen.waits))
    return one if seen.waits[one] <= seen.waits[other] else other


def by_load(seen: Seen, key: int, rng: random.Random) -> int:
    """Choose the least loaded."""
    return seen.waits.index(min(seen.waits))


def by_chance(seen: Seen, key: int, rng: random.Random) -> int:
    """Choose any."""
    return rng.randrange(len(seen.waits))


RULES: dict[str, Rule] = {
    "router": by_router,
    "plain hash": by_hash,
    "two random choices": by_two,
    "least loaded": by_load,
    "random": by_chance,
}


def simulate(world: World, rule: Rule, seed: int) -> dict[str, float]:
    """Return hits, waits, the share of time that engines work, and microseconds a choice."""
    rng = random.Random(seed)
    weights = np.cumsum(np.arange(1.0, world.prefixes + 1) ** -world.zipf)
    keys = [rng.getrandbits(64) for _ in range(world.prefixes)]
    engines = [Engine() for _ in range(world.engines)]
    fronts = [Seen(Router(world.engines, world.fronts), [0.0] * world.engines) for _ in range(world.fronts)]
    waits: list[float] = []
    now = chosen_s = 0.0
    next_view, num, hits = 0.0, 0, 0
    while now < world.seconds:
        now += rng.expovariate(world.requests_per_s)
        if now >= next_view:
            next_view += VIEW_S
            _look(engines, fronts, now)
        prefix = int(np.searchsorted(weights, rng.random() * weights[-1]))
        seen = fronts[rng.randrange(world.fronts)]
        _forget_answered(seen, now)
        begin = time.perf_counter()
        index = rule(seen, keys[prefix], rng)
        chosen_s += time.perf_counter() - begin
        wait, hit = engines[index].take(prefix, now, world)
        cost = world.tail_s + (0.0 if hit else world.prefix_s)
        seen.router.own[index] += cost
        heapq.heappush(seen.open, (engines[index].free_at, index, cost))
        num += 1
        if now >= WARM_S:
            waits.append(wait)
            hits += hit
    busy = sum(engine.busy_s for engine in engines) / (world.engines * now)
    p50, p99 = np.percentile(waits, (50, 99))
    return {"hits": hits / len(waits), "p50": p50, "p99": p99, "busy": busy, "us": chosen_s / num * 1e6}


def _look(engines: list[Engine], fronts: list[Seen], now: float) -> None:
    waits = [max(engine.free_at - now, 0.0) for engine in engines]
    for seen in fronts:
        seen.waits = waits
        seen.router.reported = waits


def _forget_answered(seen: Seen, now: float) -> None:
    own = seen.router.own
    while seen.open and seen.open[0][0] <= now:
        _, index, cost = heapq.heappop(seen.open)
        own[index] -= cost


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", type=int, default=World.engines)
    parser.add_argument("--fronts", type=int, default=World.fronts)
    parser.add_argument("--requests-per-s", type=float, default=World.requests_per_s)
    parser.add_argument("--seconds", type=float, default=World.seconds)
    parser.add_argument("--zipf", type=float, default=World.zipf)
    parser.add_argument("--cached", type=int, default=World.cached)
    parser.add_argument("--rules", nargs="*", choices=list(RULES), default=list(RULES))
    parser.add_argument("--seed", type=int, default=0)
    options = vars(parser.parse_args())
    rules, seed = options.pop("rules"), options.pop("seed")
    world = World(**options)
    print(f"{world.engines} engines, {world.requests_per_s:g} requests/s, {world.fronts} fronts, seed {seed}")
    print("| rule | prefix tokens hit | median wait | 99th percentile | engines busy | µs a choice |")
    print("|---|---|---|---|---|---|")
    for name in rules:
        found = simulate(world, RULES[name], seed)
        print(
            f"| {name} | {found['hits']:.1%} | {found['p50']:.3f} s | {found['p99']:.2f} s | {found['busy']:.0%} | "
            f"{found['us']:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
