"""S9, agents that send their whole history each turn: `python -m benchmarks.agents measure`, then `report`.

    python -m benchmarks.agents measure --models gdn --turns 8 --peers vllm,llama.cpp --program llama.cpp=PATH
    python -m benchmarks.agents report

Owns: the command line and the order of the servers. Never does: send a turn itself. Figures are appended to a file, so that
a run may measure any part. Each server runs alone. Linux and CPU only.
"""

from __future__ import annotations

import argparse
import datetime
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.agents.models import MODELS, path_of
from benchmarks.agents.report import write
from benchmarks.agents.scenarios import Figures, run_kills, run_one, run_several
from benchmarks.agents.servers import PEERS, Place, serve
from benchmarks.bandwidth import read_bandwidth
from benchmarks.peer.environment import PeerError
from benchmarks.peer.machine import commit
from benchmarks.sizes.pressure import Pressure
from benchmarks.sizes.results import Results

DOCS = Path(__file__).resolve().parents[2] / "docs"
CACHE = Path.home() / ".cache"
SCENARIOS = ("one", "several", "kills")


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agents", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure", help="append figures to the results")
    measuring.add_argument("--models", default=",".join(MODELS))
    measuring.add_argument("--turns", type=int, default=40, help="turns of one agent")
    measuring.add_argument("--several-turns", type=int, default=10, help="turns of each of eight agents")
    measuring.add_argument("--kill-turns", type=int, default=10, help="length of the history before a kill")
    measuring.add_argument("--scenarios", default=",".join(SCENARIOS), help="of peers, all but kills")
    measuring.add_argument("--peers", default=",".join(PEERS), help="empty: ours alone")
    measuring.add_argument("--without-core", action="store_true")
    measuring.add_argument("--kv-gib", type=float, default=3.0)
    measuring.add_argument("--models-dir", type=Path, default=CACHE / "core-agents")
    measuring.add_argument("--env-dir", type=Path, default=CACHE / "core-peers", help="environments of the peers")
    measuring.add_argument("--program", action="append", default=[], help="PEER=PATH of a llama-server")
    measuring.add_argument("--results", type=Path, default=DOCS / "agents.jsonl")
    measuring.add_argument("--note", default="", help="kept with the figures and shown beside them")
    reporting = commands.add_parser("report", help="write the tables from the results")
    reporting.add_argument("--results", type=Path, default=DOCS / "agents.jsonl")
    reporting.add_argument("--out", type=Path, default=DOCS / "agents.md")
    return parser.parse_args(arguments)


def measure(options: argparse.Namespace) -> None:
    """Run each engine on each model, one after the other. Raises SystemExit for an unknown name."""
    check_names(options)
    engines = ([] if options.without_core else ["core"]) + [peer for peer in options.peers.split(",") if peer]
    programs = {peer: Path(path) for peer, path in (text.split("=", 1) for text in options.program)}
    place = Place(options.models_dir, options.env_dir, programs, int(options.kv_gib * 2**30))
    now = datetime.datetime.now(datetime.UTC)
    run: dict[str, Any] = {"run": f"{now:%Y%m%dT%H%M%S}", "date": now.isoformat(timespec="seconds"), "commit": commit()}
    if options.note:
        run["note"] = options.note
    for model in options.models.split(","):
        path_of(model, "bf16", place.models)
        for engine in engines:
            for scenario in options.scenarios.split(","):
                if scenario != "kills" or engine == "core":
                    measure_one(run | {"model": model, "engine": engine, "scenario": scenario}, place, options)


def check_names(options: argparse.Namespace) -> None:
    """Raise SystemExit for an unknown model, scenario or peer."""
    known = {"models": MODELS, "scenarios": SCENARIOS, "peers": PEERS}
    for argument, names in known.items():
        for name in filter(None, getattr(options, argument).split(",")):
            if name not in names:
                raise SystemExit(f"--{argument} has {name!r}; expected some of {', '.join(names)}")


def measure_one(line: dict[str, Any], place: Place, options: argparse.Namespace) -> None:
    """Run one scenario and append its turns, or the error of a peer. line: what all its lines say."""
    results = Results(options.results)
    engine, model, scenario = line["engine"], line["model"], line["scenario"]
    line |= {"read GB/s": round(read_bandwidth(), 1)}
    pressure = Pressure()
    begin = time.perf_counter()
    rows = figures_of(scenario, engine, model, place, options, line["run"])
    try:
        for turn, (row, figures) in enumerate(rows):
            results.add(line | {"row": row, "turn": turn, "waiting": pressure.share(), "figures": figures})
            print(model, engine, row, turn, {key: round(value, 3) for key, value in figures.items()}, flush=True)
    except PeerError as error:
        results.add(line | {"row": scenario, "error": str(error)})
        print(model, engine, scenario, error, flush=True)
    print(f"{model} {engine} {scenario}: {time.perf_counter() - begin:.1f} s", flush=True)


def figures_of(
    scenario: str, engine: str, model: str, place: Place, options: argparse.Namespace, run: str
) -> Iterator[tuple[str, Figures]]:
    """Yield the rows of one scenario. Seeds differ between runs: a prompt must not lie in a cache that outlives a server."""
    seed = f"{run} {model} {scenario}"
    if scenario == "kills":
        yield from run_kills(model, place, options.kill_turns, seed)
        return
    scenarios = {
        "one": partial(run_one, turns=options.turns),
        "several": partial(run_several, turns=options.several_turns),
    }
    with serve(engine, model, place) as server:
        yield from scenarios[scenario](server, seed=seed)


def main() -> None:
    """Run the command."""
    options = options_of()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a run which is stopped still ends its server
    if options.command == "measure":
        measure(options)
    else:
        write(Results(options.results).lines, options.out)


if __name__ == "__main__":
    main()
