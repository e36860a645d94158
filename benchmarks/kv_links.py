"""How fast pages of KV blocks get from one process to another: `python -m benchmarks.kv_links`.

Owns: a process that has pages, one that takes them, and the bytes a second of each way between them: `tcp`, `nixl` and
`mooncake` with a lease, `shm` as files in memory. Never does: run a model. The ways take turns, so that whatever else runs on
the machine slows all of them; a copy within one process is timed beside them for comparison.

A way whose package is not installed is left out, and said to be. Every page is verified, as it is for an engine. A turn in
which pages are missing, which an engine would compute, has no speed: it is left out of the medians, and told with its reason.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.api.config import CacheConfig, EngineConfig, ModelConfig, PluginChoices, SchedulerConfig
from core.api.errors import ConfigError
from core.api.kv_transfer import PrefixKey
from core.kv.hashing import PrefixHasher
from core_kv_connectors.handoff.claim import Source
from core_kv_connectors.handoff.connector import Handoff
from core_kv_connectors.handoff.fabrics.fabric import Fabric, FabricTransport
from core_kv_connectors.handoff.fabrics.mooncake import MooncakeFabric
from core_kv_connectors.handoff.fabrics.nixl import NixlFabric
from core_kv_connectors.handoff.roles import Roles
from core_kv_connectors.peers.page_shape import GroupShape, PageShape
from core_kv_connectors.tiers.disk import DiskTier

WAYS = ("tcp", "shm", "nixl", "mooncake")
HOST, PRINT = "127.0.0.1", "0a" * 16
WAIT_S = 60.0
TICKET = "ticket: "
"""Begins each line of the process that has the pages."""
LAYERS = 30
"""Layers of a page, which ranks divide by heads."""


def main() -> None:
    """Measure and print medians, or be the process that has the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--page-kb", type=int, default=360, help="a block of 16 tokens of SmolLM2 135M: 360")
    parser.add_argument("--pages", type=int, default=128)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--ranks", nargs=2, type=int, default=[1, 1], help="of the two ends; pages are arranged anew")
    parser.add_argument("--port", type=int, default=8331)
    parser.add_argument("--has", nargs=2, metavar=("WAY", "DIRECTORY"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if any(ranks < 1 or (options.page_kb << 10) % (LAYERS * ranks) for ranks in options.ranks):
        parser.error(
            f"--page-kb {options.page_kb} --ranks {options.ranks}: {LAYERS} layers of each rank must fill a page"
        )
    blocks = [PrefixHasher().key(b"root", [number]) for number in range(options.pages)]
    if options.has:
        way, directory = options.has
        _serve(way, directory, options, blocks)
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        _measure(options, blocks, directory)


def _measure(options: argparse.Namespace, blocks: list[PrefixKey], directory: str) -> None:
    takers: dict[str, Taker] = {}
    rates: dict[str, list[float]] = {"copy in one process": []}
    failed: dict[str, list[str]] = {}
    left_out: dict[str, str] = {}
    try:
        for number, way in enumerate(options.ways):
            if way == "shm" and options.ranks[0] != options.ranks[1]:
                left_out[way] = "files are those of engines with the same ranks"
                continue
            try:
                takers[way] = Taker(way, options, blocks, directory, options.port + number)
            except ConfigError as error:
                left_out[way] = str(error)
        memory = np.ones(options.page_kb << 10, np.uint8), np.ones(options.page_kb << 10, np.uint8)
        for turn in range(options.turns + 1):
            for way, (seconds, problem) in [
                *((way, taker.take()) for way, taker in takers.items()),
                ("copy in one process", (_seconds(lambda: _copy(*memory, len(blocks))), "")),
            ]:
                if problem:
                    failed.setdefault(way, []).append(f"turn {turn}, after {seconds:.1f} s: {problem}")
                elif turn:  # the first one warms up
                    rates.setdefault(way, []).append(options.pages * (options.page_kb << 10) / seconds / 1e9)
    finally:
        for taker in takers.values():
            taker.close()
    medians = {way: round(statistics.median(values), 2) for way, values in rates.items()}
    told = {
        "ranks": options.ranks,
        "MB": options.pages * options.page_kb / 1024,
        "turns": options.turns,
        "GB/s": medians,
        "left out": left_out,
    }
    whole = {way: len(values) for way, values in rates.items()}
    print(json.dumps({**told, "whole turns": whole, "turns with missing pages": failed, "load": os.getloadavg()[0]}))


class Taker:
    """The process that takes pages, and the other one."""

    def __init__(
        self, way: str, options: argparse.Namespace, blocks: list[PrefixKey], directory: str, port: int
    ) -> None:
        self._blocks = blocks
        self._page_bytes = options.page_kb << 10
        self._way, self._directory, self._port = way, directory, port
        ranks = options.ranks[1]
        self._handoff = None if way == "shm" else _handoff(way, self._page_bytes, options.pages, ranks, peer=port)
        sizes = ["--page-kb", str(options.page_kb), "--pages", str(options.pages), "--port", str(port)]
        sizes += ["--ranks", *map(str, options.ranks)]
        command = [sys.executable, "-m", "benchmarks.kv_links", "--has", way, directory, *sizes]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._ticket()

    def take(self) -> tuple[float, str]:
        """Return the seconds until all pages are here, verified, and why some are not; empty: they are."""
        if self._handoff is None:
            tier = DiskTier(self._directory, PRINT, 1 << 34, self._page_bytes)
            pages: list[Any] = []
            seconds = _seconds(lambda: pages.extend(tier.read(0, key) for key in self._blocks))
            tier.close()
            return seconds, self._problem(pages, "")
        handoff, ticket = self._handoff, self._ticket()

        begin = time.perf_counter()
        why = handoff.claim("r", Source(HOST, self._port, ticket, ""), "")
        claim = handoff.claim_of("r")
        if claim is None:
            return time.perf_counter() - begin, f"no claim: {why}"
        claim.know(lambda: [(0, key) for key in self._blocks])
        claim.want(claim.offered.result(WAIT_S))
        claim.done.result(WAIT_S)
        seconds = time.perf_counter() - begin
        problem = self._problem(list(claim.pages.values()), claim.failure)
        handoff.end_claim("r")
        return seconds, problem

    def close(self) -> None:
        """End both."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(WAIT_S)
        if self._handoff is not None:
            self._handoff.close(0.0)

    def _ticket(self) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith(TICKET):  # NIXL writes lines of its own
                return line.removeprefix(TICKET).strip()
        raise SystemExit(f"The process that has pages for {self._way} has ended.")

    def _problem(self, pages: list[Any], why: str) -> str:
        found = sum(page is not None for page in pages)
        return "" if found == len(self._blocks) else f"{found} of {len(self._blocks)} pages came; {why}"


def _serve(way: str, directory: str, options: argparse.Namespace, blocks: list[PrefixKey]) -> None:
    """Have the pages, and write a ticket for them for each line that is read."""
    page_bytes = options.page_kb << 10
    pages = [np.random.default_rng(number).integers(0, 256, page_bytes, np.uint8) for number in range(len(blocks))]
    if way == "shm":
        tier = DiskTier(directory, PRINT, 1 << 34, page_bytes)
        for key, page in zip(blocks, pages, strict=True):
            tier.write(0, key, page)
            tier.flush()
        for _ in sys.stdin:
            print(TICKET + "files", flush=True)
        tier.close()
        return
    handoff = _handoff(way, page_bytes, len(blocks), options.ranks[0], listen=options.port)
    leased = [(None, 0, key, page) for key, page in zip(blocks, pages, strict=True)]
    for _ in sys.stdin:
        print(TICKET + str(handoff.lease(leased, blocks[-1].digest, len(blocks), "")), flush=True)
    handoff.close(0.0)


def _handoff(way: str, page_bytes: int, num_pages: int, ranks: int, *, listen: int = 0, peer: int = 0) -> Handoff:
    """Return one end of a way: the one that listens, or the one that asks. ranks: of its engine."""
    config = EngineConfig(
        model=ModelConfig(model="none", served_names=("none",)),
        cache=CacheConfig(),
        scheduler=SchedulerConfig(),
        plugins=PluginChoices(loader="safetensors", platform="cpu"),
    )
    fabrics: dict[str, Callable[[], Fabric]] = {
        "nixl": lambda: NixlFabric(["UCX"]),
        "mooncake": lambda: MooncakeFabric(HOST),
    }
    fabric = fabrics[way]() if way in fabrics else None
    role = "kv_producer" if listen else "kv_consumer"
    peers = () if listen else (f"{HOST}:{peer}",)
    place = f"{HOST}:{listen}" if listen else None
    roles = Roles.read(role, place, peers, lease_s=30.0, engine_id=None, has_key=False)
    size = 4 * num_pages * page_bytes
    moves = None if fabric is None else lambda number: FabricTransport(fabric, number)
    made = Handoff(
        config, lambda: PRINT, page_bytes, roles=roles, secret=b"", capacity=size, buffer=size, transport=moves
    )
    layer = page_bytes // LAYERS // ranks
    made.arrange(PageShape.of(ranks, [layer] * LAYERS, [GroupShape.of([[(layer, ranks)]] * LAYERS)]), "none")
    return made


def _copy(target: NDArray[np.uint8], source: NDArray[np.uint8], times: int) -> None:
    for _ in range(times):
        np.copyto(target, source)


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
