"""Two checkouts' servers beside each other, in pairs: `python -m benchmarks.served_pairs --b-checkout ../before`.

Owns: the interleaved comparison of S5 (over HTTP), of the time from spawn to the first completion, and of the memory after
start and after load. Never does: compare engines without a server; `benchmarks/pairs.py` does.

For S5 both servers hold their model and are idle while the other one is measured. For the start each pair starts both
sides once, one after the other, in an order that changes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
from contextlib import ExitStack
from pathlib import Path

from benchmarks.pairs import HERE, Figures, interval, python_of
from benchmarks.prompts import PromptMaker
from benchmarks.startup import Server, free_port
from benchmarks.streaming import REQUESTS, TOKENS_IN, load


def server_of(checkout: Path) -> Server:
    """`core serve` of a checkout, with the embedded model, on a free port."""
    port = free_port()
    command = [python_of(checkout), "-P", "-m", "core", "serve", "--port", str(port)]
    return Server(command, port, environment={"PYTHONPATH": str(checkout)})


def start(checkout: Path) -> Figures:
    """One start and its memory."""
    with server_of(checkout) as server:
        return {"start s": server.start_seconds, "memory MB": server.memory()["total"]}


def starts(checkouts: list[Path], pairs: int) -> None:
    """Print start and memory; the first pair warms the page cache up."""
    rows: tuple[list[Figures], list[Figures]] = ([], [])
    for number in range(pairs + 1):
        order = (0, 1) if number % 2 else (1, 0)
        for side in order:
            figures = start(checkouts[side])
            if number:
                rows[side].append(figures)
    report("start", *rows)


def streams(checkouts: list[Path], pairs: int) -> None:
    """Print S5's figures, with the same new prompts for both sides of a pair, and the memory after it."""
    rows: tuple[list[Figures], list[Figures]] = ([], [])
    with ExitStack() as stack:
        servers = [stack.enter_context(server_of(checkout)) for checkout in checkouts]

        def encode(text: str) -> list[int]:
            """Both tokenize, since the first request for that starts a process, which takes memory."""
            first, _ = [server.encode(text) for server in servers]
            return first

        prompts = PromptMaker(encode)
        for number in range(pairs + 1):
            batch = prompts.batch(REQUESTS, TOKENS_IN)
            order = (0, 1) if number % 2 else (1, 0)
            for side in order:
                figures = asyncio.run(load(servers[side].base, servers[side].model, batch))
                figures["memory MB"] = servers[side].memory()["total"]
                if number:
                    rows[side].append(figures)
    report("s5", *rows)


def report(scenario: str, ours: list[Figures], theirs: list[Figures]) -> None:
    """Print each figure: the median of both sides, and A over B."""
    for figure in ours[0]:
        own = [row[figure] for row in ours]
        other = [row[figure] for row in theirs]
        told = {
            "scenario": scenario,
            "figure": figure,
            "A": statistics.median(own),
            "B": statistics.median(other),
            "A/B": interval([mine / yours for mine, yours in zip(own, other, strict=True)]),
            "pairs": len(ours),
        }
        print(json.dumps(told), flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--a-checkout", type=Path, default=HERE, help="side A's code")
    parser.add_argument("--b-checkout", type=Path, required=True, help="side B's code")
    parser.add_argument("--scenarios", nargs="+", choices=("s5", "start"), default=["s5", "start"])
    parser.add_argument("--pairs", type=int, default=15)
    options = parser.parse_args()
    checkouts = [options.a_checkout.resolve(), options.b_checkout.resolve()]
    measures = {"s5": streams, "start": starts}
    for scenario in options.scenarios:
        measures[scenario](checkouts, options.pairs)


if __name__ == "__main__":
    main()
