"""What a busy neighbour costs a server: decode and prefill alone, beside one busy process of nice 19, beside one of nice 0.

Owns: the conditions, their order (each in turn, several times) and the table. Never does: make a neighbour
(`benchmarks.share`). Called by: `python -m benchmarks.neighbour`; with `--command` for other OpenAI-compatible servers too.

The fair share: an engine with a compute thread for each of P processors and a neighbour of equal weight are P + 1 threads,
so each is entitled to P / (P + 1) of a processor, and the engine loses 1 / (P + 1) of the machine. A neighbour of nice 19
has 15 / 1024 of the weight of one of nice 0.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shlex
import statistics
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

from benchmarks.offline import gguf_path
from benchmarks.peer.checkpoints import rewrite_gguf
from benchmarks.share import neighbour, processor_time
from benchmarks.startup import Server, core_server, free_port, process_tree
from benchmarks.streaming import complete

CONDITIONS: dict[str, int | None] = {"alone": None, "nice 19": 19, "nice 0": 0}
WEIGHTS = {19: 15 / 1024, 0: 1.0}
"""Of a neighbour, where a compute thread has 1: the kernel's table of nice values."""
TOKENS = 256
PROMPT = 1024
SETTLE_S = 0.5
IDLE_S = 5.0
PREFAULT_S = 15.0
"""Seconds before a server counts as idle: memory of the KV cache is taken from the system after the start."""

Rates = dict[tuple[str, str, str], list[float]]
"""(server, scenario, condition): a figure a round."""


def prompt(length: int) -> list[int]:
    """Token ids that no prefix cache knows."""
    return [random.randrange(100, 20_000) for _ in range(length)]


def decode(server: Server) -> float:
    """Tokens a second of one stream, from its first token on."""
    stream = asyncio.run(complete(server.base, server.model, prompt(16), TOKENS))
    return (TOKENS - 1) / (stream.arrivals[-1] - stream.arrivals[0])


def prefill(server: Server) -> float:
    """Prompt tokens a second, up to the first token."""
    stream = asyncio.run(complete(server.base, server.model, prompt(PROMPT), 1))
    return PROMPT / stream.arrivals[0]


SCENARIOS = {"decode": decode, "prefill": prefill}


def idle(server: Server) -> float:
    """Part of one processor that the server's processes use while it has nothing to do."""
    tree = process_tree(server.pid)
    before = processor_time(tree)
    time.sleep(IDLE_S)
    return (processor_time(tree) - before) / IDLE_S


def measure(servers: dict[str, Server], rounds: int) -> tuple[Rates, dict[str, list[float]]]:
    """Rates of all rounds, and the part of a processor that each condition's neighbour received while they were taken."""
    rates: Rates = defaultdict(list)
    received: dict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        for condition, nice in CONDITIONS.items():
            with neighbour(nice) as pid:
                time.sleep(SETTLE_S)
                for name, server in servers.items():
                    for scenario, run in SCENARIOS.items():
                        before, begin = processor_time([pid] if pid else []), time.monotonic()
                        rates[name, scenario, condition].append(run(server))
                        if pid:
                            part = (processor_time([pid]) - before) / (time.monotonic() - begin)
                            received[f"{name} {scenario} {condition}"].append(part)
    return rates, received


def table(rates: Rates, received: dict[str, list[float]], processors: int) -> str:
    """Markdown: medians, the part of the speed that was lost (the median of the rounds'), and the neighbour's fair part."""
    lines = ["| server | | neighbour | tok/s | lost | neighbour's processor | its fair part of the machine |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- |")
    for (name, scenario, condition), found in rates.items():
        nice = CONDITIONS[condition]
        cells = [name, scenario, condition, f"{statistics.median(found):.1f}"]
        if nice is None:
            cells += ["", "", ""]
        else:
            alone = rates[name, scenario, "alone"]
            lost = statistics.median(1 - rate / full for rate, full in zip(found, alone, strict=True))
            part = statistics.median(received[f"{name} {scenario} {condition}"])
            cells += [f"{lost:.0%}", f"{part:.0%}", f"{fair_part(nice, processors):.1%}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def fair_part(nice: int, processors: int) -> float:
    """The part of the machine that is the neighbour's beside one compute thread for each processor."""
    weight = WEIGHTS[nice]
    return min(weight / (processors + weight), 1 / processors)


def main() -> None:
    """Start the servers, measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.neighbour", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", help="GGUF file; the embedded default when left out")
    parser.add_argument(
        "--command", action="append", default=[], type=shlex.split, help="starts another server; {port} is its port"
    )
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    source = Path(gguf_path(options.model))
    with tempfile.TemporaryDirectory(prefix="core-neighbour-") as folder, ExitStack() as stack:
        bf16 = Path(folder) / "bf16.gguf"
        rewrite_gguf(source, bf16, "bf16")
        ours = {"core bf16": core_server(str(bf16)), f"core {source.stem}": core_server(str(source))}
        servers = ours | {words[0]: _other(words) for words in options.command}
        for server in servers.values():
            stack.enter_context(server)
        for server in servers.values():  # the first runs warm up
            for run in SCENARIOS.values():
                run(server)
        time.sleep(PREFAULT_S)
        for name, server in servers.items():
            print(f"{name}, idle: {idle(server):.1%} of a processor", flush=True)
        rates, received = measure(servers, options.rounds)
        print(table(rates, received, len(os.sched_getaffinity(0))))


def _other(words: list[str]) -> Server:
    port = free_port()
    return Server([word.replace("{port}", str(port)) for word in words], port)


if __name__ == "__main__":
    main()
