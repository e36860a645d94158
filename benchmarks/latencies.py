"""Time to the first token against the time between tokens, along an argument: `python -m benchmarks.latencies --peers vllm`.

Owns: S5 of `core serve` at several values of one argument, next to the servers of peers; its JSON file and table.
Never does: install a peer, or choose a value. Called by: people.

All servers are started once. In each round every one of them gets the same new prompts, while the others are stopped.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from tokenizers import Tokenizer

from benchmarks.peer.checkpoints import Checkpoints
from benchmarks.peer.contenders import CONTENDERS, ENVIRONMENT_OF, LLAMAS, Contender, Launches
from benchmarks.peer.environment import Environments
from benchmarks.peer.fleet import Fleet
from benchmarks.peer.scenarios import FULL, Figures, prompts_for, run_served
from benchmarks.prompts import PromptMaker

COLUMNS = ("TTFT p50 ms", "TTFT p99 ms", "ITL p50 ms", "ITL p99 ms", "output tok/s")
PEERS = ("vllm", "llama.cpp")
Rows = dict[str, list[Figures]]


def contenders(argument: str, values: list[str], peers: list[str]) -> list[Contender]:
    """Our server at each of the argument's values, then the peers."""
    found = [Contender(f"core --{argument} {value}", "core", "bf16", {argument: value}) for value in values]
    served = [contender for contender in CONTENDERS.values() if contender.name.endswith("bf16")]
    return found + [contender for contender in served if contender.peer in peers]


def measure(
    fleet: Fleet, servers: list[Contender], maker: PromptMaker, rounds: int, console: Console
) -> Iterator[dict[str, Figures]]:
    """Run S5 `rounds` times on each server, after a quarter of it as a warm-up; yields the figures of each round."""
    for number in range(rounds + 1):
        row: dict[str, Figures] = {}
        sizes = FULL if number else replace(FULL, s5_requests=FULL.s5_requests // 4)
        prompts = prompts_for("s5", maker, sizes)
        for contender in servers:
            extra = {"cache_prompt": False} if contender.peer in LLAMAS else {}
            with fleet.server(contender) as server:
                figures = run_served("s5", server, prompts, sizes, extra, number)
            row[contender.name] = figures
            if number:
                shown = ", ".join(f"{column} {figures[column]:.1f}" for column in COLUMNS)
                console.print(f"{number} {contender.name}: {shown}", highlight=False, markup=False)
        if number:
            yield row


def table(rows: Rows) -> str:
    """Markdown: medians of the rounds; after the first peer's row, each of ours has its p99 values as ratios to it."""
    base = next((name for name in rows if not name.startswith("core")), None)
    heads = ["server", *COLUMNS]
    if base is not None:
        heads += [f"TTFT p99 / {base}", f"ITL p99 / {base}"]
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for name, found in rows.items():
        cells = [name, *(f"{statistics.median(row[column] for row in found):,.1f}" for column in COLUMNS)]
        if base is not None:
            cells += [_ratio(found, rows[base], column) for column in ("TTFT p99 ms", "ITL p99 ms")]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _ratio(found: list[Figures], others: list[Figures], column: str) -> str:
    """Return the median of the ratios of the rounds."""
    ratios = [row[column] / other[column] for row, other in zip(found, others, strict=True)]
    return f"{statistics.median(ratios):.2f}×"


def earlier(path: Path | None, names: list[str]) -> Rows:
    """Return the rounds that the JSON file has. Raises SystemExit when they are of other servers."""
    if path is None or not path.exists():
        return {name: [] for name in names}
    rows: Rows = json.loads(path.read_text())
    if list(rows) != names:
        raise SystemExit(f"{path} has the servers {', '.join(rows)}; expected {', '.join(names)}. Use another --json.")
    return rows


def main() -> None:
    """Measure, print the table, and write the JSON file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.latencies", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--argument", default="queued-prompts-weight", help="of `core serve`, without dashes")
    parser.add_argument("--values", nargs="*", default=["0", "1", "2", "4", "8"], help="of the argument")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=[], help="servers to compare with")
    parser.add_argument("--model", help="a GGUF file; the embedded default when left out")
    parser.add_argument(
        "--env-dir", type=Path, default=Path.home() / ".cache" / "core-peers", help="environments, copies"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--json", type=Path, help="where figures of all rounds are written; an existing file is continued"
    )
    options = parser.parse_args()
    console = Console()
    environments = Environments(options.env_dir, console, offline=True)
    for peer in options.peers:
        environments.python(ENVIRONMENT_OF[peer])
    checkpoints = Checkpoints(options.model, options.env_dir / "models", environments, console)
    tokenizer = Tokenizer.from_file(str(checkpoints.path("bf16") / "tokenizer.json"))
    maker = PromptMaker(lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids))
    fleet = Fleet(Launches(environments, checkpoints, options.env_dir / "work"), options.env_dir / "work" / "logs")
    servers = contenders(options.argument, options.values, options.peers)
    rows = earlier(options.json, [contender.name for contender in servers])
    try:
        for row in measure(fleet, servers, maker, options.rounds, console):
            for name, figures in row.items():
                rows[name].append(figures)
            if options.json:
                options.json.write_text(json.dumps(rows, indent=1) + "\n")
    finally:
        fleet.close()
    console.print(table(rows), highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()
