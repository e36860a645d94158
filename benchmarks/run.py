"""S1 to S5 against `core`, as one table.

Run: `python -m benchmarks.run` (about two minutes on two cores), `python -m benchmarks.run --scenarios s1 s5 --json out.json`.
S1 to S4 run in a process of their own (`benchmarks.offline`), S5 against a server that is started for it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.prompts import PromptMaker
from benchmarks.startup import core_server
from benchmarks.streaming import s5

WHAT = {
    "ready": "import, load, first tokens",
    "s1": "one stream, 128 in, 256 out",
    "s2": "one prompt of 1,024",
    "s3": "64 requests, 128 in, 128 out",
    "s4": "32 requests, 768 shared",
    "machine": "beside it",
    "start": "spawn of `core serve` to the first completion",
    "memory": "all processes of the server, PSS in MB",
    "s5": "HTTP, 64 streams, 16 at a time",
}
OFFLINE = ("s1", "s2", "s3", "s4")


def run_offline(options: argparse.Namespace, scenarios: list[str]) -> dict[str, Any]:
    """The figures of `benchmarks.offline`, from a process of its own."""
    command = [sys.executable, "-m", "benchmarks.offline", "--repeats", str(options.repeats), "--scenarios", *scenarios]
    command += ["--model", options.model] if options.model else []
    command += ["--llama-bench", options.llama_bench] if options.llama_bench else []
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, cwd=Path(__file__).parents[1])
    if done.returncode:
        raise SystemExit(f"The offline scenarios ended with {done.returncode}; see above.")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def run_server(options: argparse.Namespace) -> dict[str, Any]:
    """Start, memory before and after the load, and S5."""
    with core_server(options.model) as server:
        idle = server.memory()["total"]
        figures = s5(server.base, server.model, PromptMaker(server.encode), options.repeats)
        memory = {"idle": idle, "after load": server.memory()["total"]}
        return {"start": {"seconds": server.start_seconds}, "memory": memory, "s5": figures}


def table(results: dict[str, Any]) -> Table:
    """One row for each figure."""
    shown = Table(title="core")
    for name, side in (("scenario", "left"), ("what", "left"), ("figure", "left"), ("median", "right")):
        shown.add_column(name, justify="right" if side == "right" else "left")
    for scenario, figures in results.items():
        what = WHAT.get(scenario.split()[0], "")
        for i, (name, value) in enumerate(figures.items()):
            text = f"{value:,.0f}" if value >= 1000 else f"{value:.2f}" if value < 10 else f"{value:.1f}"
            shown.add_row("" if i else scenario, "" if i else what, name, text)
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", help="model reference; the embedded default when left out")
    parser.add_argument("--scenarios", nargs="+", choices=(*OFFLINE, "s5"), default=[*OFFLINE, "s5"])
    parser.add_argument("--repeats", type=int, default=3, help="counted repetitions, after one that is not")
    parser.add_argument("--llama-bench", default=shutil.which("llama-bench"), help="llama.cpp's binary, run in between")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    options = parser.parse_args()
    offline = [name for name in OFFLINE if name in options.scenarios]
    results = run_offline(options, offline) if offline else {}
    if "s5" in options.scenarios:
        results |= run_server(options)
    Console().print(table(results))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
