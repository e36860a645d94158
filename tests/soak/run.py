"""A server that is injured for some minutes while every answer is compared: `python -m tests.soak.run`, `make soak`.

Exit code: 0 when nothing was wrong, lost or leaked and no turn is missing, 1 otherwise, 2 for wrong arguments.
"""

import argparse
import json
import platform
import random
import re
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.apis.serving_processes import free_ports
from tests.kv.conversations import FAMILIES, checkpoint
from tests.real_models import gemma3_path
from tests.soak.cases import Case, cases, without_adapters
from tests.soak.clients import Clients, oracle
from tests.soak.injuries import Injuries
from tests.soak.operators import Operators
from tests.soak.site import Site, shared_memory
from tests.soak.tally import Tally

LEAVING, GREEDY, OPERATING = 1, 1, 2
IDLE_LIMIT_S = 30.0
GROWTH_MB = 60.0
MORE_DESCRIPTORS = 16
MOST_HELPERS = 8
"""Of each API process one that reads large requests, and those that compile grammars."""
SAY_EVERY_S = 30.0
SHARED_GIB = 0.0625
TINY_LEN, TINY_MEMORY = 8192, "24M"
"""Each byte is a token of a tiny model, and few of them fill its memory."""
NOT_WITH_RANKS = (
    "enable_lora", "max_loras", "max_cpu_loras", "allow_runtime_lora_updating", "lora_directory", "lora_modules",
    "weight_transfer_config", "kv_offloading_disk_path", "kv_offloading_disk_size",
)  # fmt: skip
FIRST_TRACE = re.compile(r"(?<!exception occurred:\n\n)(?<!following exception:\n\n)Traceback")
"""The beginning of a traceback, with those of the exceptions that followed from it."""
OF_A_RANK = "EngineDeadError: Rank "
LONGER = 6.0
"""How many times as long a soak may last until enough has happened: a busy machine takes its time."""


@dataclass(frozen=True)
class Extent:
    """How long a soak lasts.

    least: right answers; with fewer of them, or before an engine has died, it goes on. 0: the time alone counts.
    turns: of sessions, at which it ends, whatever the time; 0: as above.
    """

    seconds: float
    least: int = 0
    turns: int = 0

    def is_over(self, elapsed: float, tally: Tally) -> bool:
        """Whether the time is over and enough has happened."""
        if self.turns:
            return tally.turns >= self.turns or elapsed >= self.seconds * LONGER
        enough = self.least == 0 or (tally.right >= self.least and bool(tally.recovery))
        return elapsed >= (self.seconds if enough else self.seconds * LONGER)


@dataclass(frozen=True)
class Crowd:
    """Clients of each kind: those whose answers are compared, and those that talk in sessions."""

    honest: int = 5
    talking: int = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, soak, report."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.run", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--keep-kv", action="store_true", help="blocks outlive engines, which cannot sleep then")
    parser.add_argument("--shm", action="store_true", help="pages in shared memory too")
    parser.add_argument("--kv-eviction", choices=("lru", "arc", "cost"), default="lru")
    parser.add_argument("--ngram", action="store_true", help="drafts of the text before")
    parser.add_argument(
        "--ranks", type=int, default=1, help="ranks, which are killed too; no adapters, tiers or updates"
    )
    parser.add_argument("--stages", type=int, default=1, help="stages, likewise")
    parser.add_argument("--engines", type=int, default=1, help="engines of one server")
    parser.add_argument("--moves", action="store_true", help="engines are drained; their requests go on in others")
    parser.add_argument("--tiny", choices=FAMILIES, help="a tiny model of a family; no adapters or updates")
    parser.add_argument("--honest", type=int, default=Crowd.honest, help="clients whose answers are compared")
    parser.add_argument("--talking", type=int, default=Crowd.talking, help="clients that talk in sessions")
    parser.add_argument("--turns", type=int, default=0, help="turns of sessions, at which it ends: not after --minutes")
    parser.add_argument("--report", type=Path, default=Path("soak-report.md"))
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True) as home:
        arguments = _arguments(options, Path(home))
        asked = without_adapters(cases()) if options.ranks * options.stages > 1 or options.tiny else None
        extent, crowd = Extent(options.minutes * 60, turns=options.turns), Crowd(options.honest, options.talking)
        begin = time.monotonic()
        tally, notes = soak(Path(home), extent, options.seed, asked, arguments, crowd)
    chosen = [f"--kv-eviction {options.kv_eviction}"] + ["--keep-kv"] * options.keep_kv + ["--shm"] * options.shm
    chosen += (
        ["--ngram"] * options.ngram + ["--moves"] * options.moves + [f"--tiny {options.tiny}"] * bool(options.tiny)
    )
    chosen += [f"--{name} {count}" for name in ("ranks", "stages", "engines") if (count := vars(options)[name]) > 1]
    facts = f"{options.minutes:g} minutes, seed {options.seed}, {' '.join(chosen)}, {platform.platform(terse=True)}"
    summary = "\n".join([tally.summary(facts), *(f"- {note}" for note in notes)])
    options.report.write_text(summary)
    print(summary)
    print(f"seed {options.seed}, {time.monotonic() - begin:.0f} s: {tally.totals}; {tally.verdict}")
    return 0 if tally.held and tally.turns >= options.turns else 1


def _arguments(options: argparse.Namespace, home: Path) -> dict[str, Any]:
    """What the server gets besides the arguments of every soak."""
    found: dict[str, Any] = {"kv_eviction": options.kv_eviction}
    if options.keep_kv:
        found |= {"keep_kv": True, "enable_sleep_mode": None}
    if options.shm:
        found |= {
            "kv_connectors": "shm",
            "kv_connectors_config.shm.size": SHARED_GIB,
            "kv_connectors_config.shm.directory": shared_memory(home),
        }
    if options.ngram:
        found["speculative_config"] = '{"method": "ngram", "num_speculative_tokens": 3}'
    if options.engines > 1:
        found["data_parallel_size"] = options.engines
    if options.moves:
        found |= of_moves(max(options.engines, 2))
    if options.tiny:
        found |= of_tiny(options.tiny, home / "tiny")
    return found | of_ranks(options.ranks, options.stages)


def of_moves(engines: int) -> dict[str, Any]:
    """Arguments for engines that hand requests to one another, behind one API process."""
    role = {"kv_connector": "tcp", "kv_role": "kv_both", "kv_port": free_ports(engines)}
    return {"data_parallel_size": engines, "api_server_count": 1, "kv_transfer_config": json.dumps(role)}


def of_ranks(ranks: int, stages: int) -> dict[str, Any]:
    """Arguments for ranks, and without what these do not serve yet. The embedded model has 9 heads."""
    if ranks * stages == 1:
        return {}
    sizes = {"tensor_parallel_size": ranks, "pipeline_parallel_size": stages, "distributed_timeout_seconds": 3}
    model = {} if ranks == 1 else {"model": gemma3_path(), "kv_cache_memory_bytes": "128M"}
    return dict.fromkeys(NOT_WITH_RANKS) | sizes | model


def of_tiny(family: str, path: Path) -> dict[str, Any]:
    """Arguments for a tiny model of a family, with which there are many more turns; adapters and updates are not its own."""
    config = checkpoint(family, path) / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": TINY_LEN}))
    others = dict.fromkeys(name for name in NOT_WITH_RANKS if "kv" not in name)
    return others | {"model": path, "max_model_len": TINY_LEN, "kv_cache_memory_bytes": TINY_MEMORY}


def soak(
    home: Path,
    extent: Extent,
    seed: int,
    asked: Sequence[Case] | None = None,
    arguments: Mapping[str, Any] | None = None,
    crowd: Crowd | None = None,
    **injuring: Any,
) -> tuple[Tally, list[str]]:
    """Injure a server; what was seen, and what this machine does not allow.

    home:     an empty directory.
    asked:    by clients; None: all cases.
    arguments: of the server, besides those of every soak.
    crowd:    clients of the kinds whose number may be chosen.
    injuring: see `Injuries`.
    """
    tally = Tally()
    site = Site(home, **(arguments or {}))
    dice = random.Random(seed)
    injuries = Injuries(site, tally, dice, **injuring)
    try:
        _soak(site, tally, extent, dice, asked or cases(), injuries, crowd or Crowd())
    finally:
        site.close()
    return tally, site.notes


def _soak(
    site: Site,
    tally: Tally,
    extent: Extent,
    dice: random.Random,
    asked: Sequence[Case],
    injuries: Injuries,
    crowd: Crowd,
) -> None:
    clients = Clients(site, tally, asked, oracle(site, asked))
    operators = Operators(site, tally)
    roles = [clients.honest] * crowd.honest + [clients.leaving] * LEAVING + [clients.greedy] * GREEDY
    roles += [clients.talking] * crowd.talking + [operators.operate] * OPERATING
    with ThreadPoolExecutor(len(roles) + 1) as pool:
        running = [pool.submit(role, random.Random(dice.random())) for role in roles]
        injuring = pool.submit(injuries.run)
        samples = _watch(site, tally, extent)
        injuries.over.set()
        injuring.result()
        operators.over.set()
        clients.over.set()
        for future in running:
            future.result()
    site.move_clock(0)
    if halted := operators.halted():
        tally.halt(halted)
    clients.end_sessions()
    _look(site, tally, samples)


def _watch(site: Site, tally: Tally, extent: Extent) -> list[tuple[int, float, int]]:
    """Wait for the end; (generation, MB and descriptors of the server process) again and again."""
    samples: list[tuple[int, float, int]] = []
    begin = said = time.monotonic()
    while not extent.is_over(elapsed := time.monotonic() - begin, tally):
        time.sleep(min(2.0, max(0.1, extent.seconds - elapsed)))
        if not site.is_up:
            continue
        try:
            samples.append((site.generation, site.memory(), len(site.descriptors())))
        except (psutil.Error, OSError):
            continue  # the server has just been killed
        if time.monotonic() - said > SAY_EVERY_S:
            said = time.monotonic()
            print(
                f"{elapsed:6.0f} s  {tally.right} right, {tally.turns} turns, {tally.verdict}; "
                f"{len(tally.recovery)} engines died, {sum(tally.operated.values())} operations",
                flush=True,
            )
    return samples


def _look(site: Site, tally: Tally, samples: Sequence[tuple[int, float, int]]) -> None:
    """What is left when everybody has gone."""
    busy = site.until_idle(IDLE_LIMIT_S)
    if busy:
        tally.leak(f"without a request there is still {busy}")
    broken = site.check_integrity()
    if broken:
        tally.leak(f"check_integrity: {broken}")
    helpers = site.helpers()
    if len(helpers) > MOST_HELPERS:
        tally.leak(f"beside server and engine there are {[helper.cmdline() for helper in helpers]}")
    lived = [sample for sample in samples if sample[0] == site.generation]
    if len(lived) >= 8:
        _, early_mb, early_files = lived[len(lived) // 4]
        if site.memory() > early_mb + GROWTH_MB:
            tally.leak(f"the server's memory went from {early_mb:.0f} to {site.memory():.0f} MB")
        open_files = site.descriptors(until=early_files + MORE_DESCRIPTORS, limit_s=IDLE_LIMIT_S)
        if len(open_files) > early_files + MORE_DESCRIPTORS:
            tally.leak(f"the server's descriptors went from {early_files} to {open_files}")
    for trace in FIRST_TRACE.split(site.server.log())[1:]:
        # An engine that cannot go on without a rank that was killed says where it noticed.
        if OF_A_RANK not in trace:
            tally.leak(f"a traceback in the log: {trace[:1500]}")
            break
    for left in site.end():
        tally.leak(f"after the end: {left}")


if __name__ == "__main__":
    sys.exit(main())
