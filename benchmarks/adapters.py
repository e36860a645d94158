"""Adapters against our own base and next to other engines: `python -m benchmarks.adapters`.

Owns: the choice of rows, their JSON and the table. Never does: measure, or install a peer (`benchmarks.peers` does).

Random adapters on all seven matrices of SmolLM2 are written as peft's and llama.cpp's files. Rows:

    speed   one stream and 64 requests with adapters, of our own base and next to peers; from disk to the first token
    idle    base traffic with eight idle adapters next to an engine without the switch
    stall   the longest wait of eight streams while an adapter is loaded
    many    1,000 adapters registered, 16 in memory, asked for by Zipf's law
    large   rank 64 for an 8B model, from disk to the first token
    memory  what adapters take next to what `core config explain` plans

A peer that cannot take part is listed with its error. Each figure is printed as one line of JSON, and added to `--json FILE`;
`--table FILE` prints the rows of such a file as Markdown. Kernels alone: `python -m benchmarks.adapter_kernels`.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from benchmarks.adapter_loads import large, many, memory
from benchmarks.adapter_place import FORMS, Place, Record
from benchmarks.adapter_speed import PEERS, SCENARIOS, idle, speed
from benchmarks.adapter_stalls import stall
from benchmarks.peer.checkpoints import Checkpoints
from benchmarks.peer.contenders import Launches
from benchmarks.peer.environment import Environments

ROWS = ("speed", "idle", "stall", "many", "large", "memory")


def records(
    place: Place, rows: list[str], forms: list[str], peers: list[str], scenarios: list[str]
) -> Iterator[Record]:
    """Measure the rows, one after the other."""
    if "speed" in rows:
        yield from speed(place, forms, peers, scenarios)
    if "idle" in rows:
        yield from idle(place, forms)
    if "stall" in rows:
        yield from stall(place, forms, peers)
    if "many" in rows:
        yield from many(place)
    if "large" in rows:
        yield from large(place)
    if "memory" in rows:
        yield from memory(place, forms)


def table(file: Path) -> str:
    """Return the rows of a file as Markdown."""
    lines = ["| row | engine | figures | bar | met |", "|---|---|---|---|---|"]
    for line in file.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        row = " ".join(str(record.pop(name)) for name in ("row", "scenario") if name in record)
        engine, bar, met = record.pop("engine"), record.pop("bar", ""), record.pop("met", None)
        figures = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in record.items())
        verdict = "" if met is None else "yes" if met else "**no**"
        lines.append(f"| {row} | {engine} | {figures} | {bar} | {verdict} |")
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Adapters against our own base and next to other engines.")
    parser.add_argument("--rows", default=",".join(ROWS), help=f"some of {', '.join(ROWS)}")
    parser.add_argument("--forms", default=",".join(FORMS), help="weights of our engine: some of bf16, Q4_1")
    parser.add_argument("--peers", default=",".join(PEERS), help="some of these; empty: none")
    parser.add_argument(
        "--scenarios", default=",".join(SCENARIOS), help=f"of the row speed: some of {', '.join(SCENARIOS)}"
    )
    parser.add_argument("--repeats", type=int, default=3, help="counted repetitions, or loads; at least 2")
    parser.add_argument("--seconds", type=float, default=1e9, help="after these, no further repetition begins")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that an engine has for an answer")
    parser.add_argument("--model", help="a GGUF file; the embedded default when left out")
    parser.add_argument(
        "--env-dir",
        type=Path,
        default=Path.home() / ".cache" / "core-peers",
        help="environments and checkpoints of the peers",
    )
    parser.add_argument("--json", type=Path, help="file to which figures are added")
    parser.add_argument("--table", type=Path, help="print the figures of this file, and measure nothing")
    return parser.parse_args()


def main() -> None:
    """Measure, and print a line for each figure."""
    options, console = parse(), Console()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # the engines end with it
    if options.table is not None:
        print(table(options.table))
        return
    environments = Environments(options.env_dir, console, offline=True)
    checkpoints = Checkpoints(options.model, options.env_dir / "models", environments, console)
    place = Place(
        Launches(environments, checkpoints, options.env_dir / "work"), options.repeats, options.seconds, options.limit
    )
    rows, forms, peers, scenarios = (
        [word for word in given.split(",") if word]
        for given in (options.rows, options.forms, options.peers, options.scenarios)
    )
    try:
        for record in records(place, rows, forms, peers, scenarios):
            line = json.dumps(record)
            print(line, flush=True)
            if options.json is not None:
                with options.json.open("a", encoding="utf-8") as stream:
                    stream.write(line + "\n")
    finally:
        place.fleet.close()


if __name__ == "__main__":
    main()
