"""Decode speed of a server that gets a share of the machine: 0.5, 1, 1.5 and all processors, a busy neighbour, 32 visible.

Owns: the rows, their order (one of each in turn, several times) and the table. Never does: make a share
(`benchmarks.share`). Called by: `python -m benchmarks.quota`; with `--command` for any OpenAI-compatible server.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shlex
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.share import Group, StandIn, many_visible, neighbour, share
from benchmarks.startup import Server, free_port
from benchmarks.streaming import complete

TOKENS = 256
SETTLE_S = 2.0


@dataclass
class Row:
    """A share. quota: of processors, None without a limit. fair: the share of full speed that it is entitled to."""

    name: str
    quota: float | None
    fair: float
    busy: bool = False
    visible: bool = False
    rates: list[float] = field(default_factory=list)
    periods: int = 0


def rows(processors: int) -> list[Row]:
    """The measured shares of a machine."""
    found = [Row("all, no limit", None, 1.0)]
    for quota in (0.5, 1.0, 1.5, 2.0):
        found.append(Row(f"{quota:g} processors", quota, min(quota / processors, 1.0)))
    found.append(Row("beside a busy neighbour", None, 1 - 0.5 / processors, busy=True))
    found.append(Row("32 visible, 2 allowed", 2.0, min(2 / processors, 1.0), visible=True))
    return found


def measure(row: Row, command: list[str] | None, seconds: float, streams: int, directory: Path) -> str:
    """Start a server in its share and add its rate to the row. Returns what kind of share it was."""
    group = share(row.quota)
    environment = many_visible(directory) if row.visible else {}
    try:
        with server(group, command, environment) as running:
            group.watch(running.pid)
            if row.busy:
                with neighbour():
                    rate, periods = decode(running, group, seconds, streams)
            else:
                rate, periods = decode(running, group, seconds, streams)
    finally:
        group.close()
    row.rates.append(rate)
    row.periods += periods
    return group.kind


def server(group: Group | StandIn, command: list[str] | None, environment: dict[str, str]) -> Server:
    """A server that begins its life in the group."""
    port = free_port()
    root = str(Path(__file__).resolve().parents[1])
    words = command or [sys.executable, "-P", "-m", "core", "serve", "--port", "{port}"]
    words = [word.replace("{port}", str(port)) for word in words]
    return Server([*group.prefix(), *words], port, environment={"PYTHONPATH": root, **environment})


def decode(running: Server, group: Group | StandIn, seconds: float, streams: int) -> tuple[float, int]:
    """Tokens a second of some streams at once, from the first token on, and the periods in which they had to wait."""
    prompt = list(range(100, 116))

    async def load(tokens: int) -> float:
        jobs = [complete(running.base, running.model, prompt, tokens) for _ in range(streams)]
        done = await asyncio.gather(*jobs)
        return max(stream.arrivals[-1] - stream.arrivals[0] for stream in done)

    asyncio.run(load(32))
    time.sleep(SETTLE_S)  # threads that follow what they get may do so
    before, spent, tokens = group.throttled(), 0.0, 0
    while spent < seconds:
        spent += asyncio.run(load(TOKENS))
        tokens += (TOKENS - 1) * streams
    return tokens / spent, group.throttled() - before


def table(found: list[Row], kind: str) -> str:
    """Markdown: medians, the share of full speed, and what part of the fair share that is."""
    full = statistics.median(found[0].rates)
    lines = [f"Shares by {kind}.", "", "| share | tok/s | of full speed | of its share | throttled periods |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for row in found:
        rate = statistics.median(row.rates)
        of_full = rate / full
        lines.append(f"| {row.name} | {rate:.1f} | {of_full:.0%} | {of_full / row.fair:.0%} | {row.periods} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quota", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--command", type=shlex.split, help="starts another server; {port} is its port")
    parser.add_argument("--seconds", type=float, default=6.0, help="of decoding a row")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--only", type=lambda text: text.split(","), help="beginnings of rows' names")
    options = parser.parse_args()
    found = rows(len(os.sched_getaffinity(0)))
    if options.only:
        found = [row for row in found if row.name.startswith(("all", *options.only))]
    kind = ""
    with tempfile.TemporaryDirectory(prefix="core-quota-") as name:
        for _ in range(options.repeats):
            for row in found:
                kind = measure(row, options.command, options.seconds, options.streams, Path(name))
                print(f"{row.name}: {row.rates[-1]:.1f} tok/s", file=sys.stderr, flush=True)
    with contextlib.suppress(BrokenPipeError):
        print(table(found, kind))


if __name__ == "__main__":
    main()
