"""What `core tune` finds in minutes, next to the best of a full sweep of the same values: `python -m benchmarks.tune MODEL`.

Owns: the loads, the grid, and the ratio of both scores. Never does: choose or measure (`core tune` and `core bench sweep` do).
Called by: people, on a machine that nobody else uses.

For each load `core tune` runs first. Then a sweep starts a server for every combination of the values that `core tune` was
allowed to try, and one for what it has chosen, all measured with the same loads. Further passes go through the sets in
turned order, so that a machine whose speed wanders favours none. The bar is 97% of the best.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from core.processes import python_command
from core_commands.tune.goals import Goals

BAR = 0.97
LOADS: Mapping[str, Sequence[str]] = {
    "chats": ("--random-input-len", "128", "--random-output-len", "64", "--max-concurrency", "8"),
    "long prompts": ("--random-input-len", "1024", "--random-output-len", "16", "--max-concurrency", "4"),
    "one prefix": ("--dataset-name", "prefix_repetition", "--output-len", "32", "--max-concurrency", "16"),
}
GRID: Mapping[str, Sequence[Any]] = {
    "max_num_mixed_batched_tokens": (24, 48, 96, 192),
    "speculative_config": (None, {"method": "suffix"}, {"method": "ngram", "num_speculative_tokens": 4}),
    "async_scheduling": (False, True),
    "prefix_caching_hash_algo": ("sha256", "xxhash"),
}
"""Values of the sweep: those that `core tune` tries of these arguments, and the present ones."""


def main() -> None:
    """Print a row for each load, and exit with 1 if one misses the bar."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", help="unset: the embedded one")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--goal", default="ttft:2000,itl:200")
    parser.add_argument("--num-prompts", type=int, default=64)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--passes", type=int, default=1, help="times that the sweep is made, every second one backwards"
    )
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS))
    parser.add_argument("--arguments", nargs="+", choices=GRID, default=list(GRID))
    options = parser.parse_args()
    ratios = []
    for load in options.loads:
        with tempfile.TemporaryDirectory() as folder:
            ratios.append(compare(load, options, Path(folder)))
    sys.exit(min(ratios) < BAR)


def compare(load: str, options: argparse.Namespace, folder: Path) -> float:
    """Return the score of what was chosen, as a share of the best one in the sweep."""
    goals = Goals.read(options.goal.split(","), 90.0)
    begin = time.monotonic()
    chosen = tuned(load, options)
    took = time.monotonic() - begin
    sets = combinations({name: GRID[name] for name in options.arguments})
    rows: list[list[dict[str, Any]]] = [[] for _ in range(len(sets) + 1)]
    for number in range(options.passes):
        turn = -1 if number % 2 else 1
        found = swept(load, options, [*sets, chosen][::turn], folder / str(number))
        for number_of_set, more in enumerate(found[::turn]):
            rows[number_of_set] += more
    scores = [statistics.median(map(goals.score, each)) for each in rows]
    ratio = scores[-1] / max(scores)
    best = [*sets, chosen][scores.index(max(scores))]
    for each, score, row in zip([*sets, chosen], scores, rows, strict=True):
        print(f"{load}: {score:8.2f} {each} {[round(goals.score(run), 2) for run in row]}", flush=True)
    print(
        f"{load}: {ratio:.1%} of the best of {len(sets)}, after {took:.0f} s; chosen {chosen}, best {best}", flush=True
    )
    return ratio


def combinations(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return every combination of values; None leaves an argument out."""
    found = []
    for values in itertools.product(*grid.values()):
        found.append({name: value for name, value in zip(grid, values, strict=True) if value is not None})
    return found


def tuned(load: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments that `core tune` chooses for a load."""
    words = [*([options.model] if options.model else []), *LOADS[load], "--goal", options.goal, "--json"]
    words += ["--minutes", f"{options.minutes:g}", "--only", ",".join(options.arguments)]
    done = subprocess.run(python_command("core", "tune", *words), stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode == 2:
        print(f"{load}: refused by core tune, so the present values stay", flush=True)
        return {}
    done.check_returncode()
    chosen: dict[str, Any] = json.loads(done.stdout)["chosen"]
    return chosen


def swept(
    load: str, options: argparse.Namespace, sets: Sequence[Mapping[str, Any]], folder: Path
) -> list[list[dict[str, Any]]]:
    """Return the results of every run with each set of arguments."""
    folder.mkdir()
    named = [{**each, "_benchmark_name": f"set{number}"} for number, each in enumerate(sets)]
    (folder / "serve.json").write_text(json.dumps(named))
    serve = shlex.join(["core", "serve", *([options.model] if options.model else []), "--port", "8765"])
    bench = ["core", "bench", "serve", "--port", "8765", "--num-prompts", str(options.num_prompts), *LOADS[load]]
    words = ["-o", str(folder / "out"), "--serve-cmd", serve, "--serve-params", str(folder / "serve.json")]
    words += ["--bench-cmd", shlex.join(bench), "--num-runs", str(options.runs)]
    subprocess.run(python_command("core", "bench", "sweep", *words), stdout=subprocess.DEVNULL, check=True)
    return [
        [json.loads(path.read_text()) for path in sorted((folder / "out" / f"set{number}").glob("run*.json"))]
        for number in range(len(sets))
    ]


if __name__ == "__main__":
    main()
