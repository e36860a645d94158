"""The table of a GPU: every goal beside what was measured, and beside the two ceilings of the same device.

Run: `python -m benchmarks.gpu` (minutes), `--only llama gaps` for some, `--json FILE` to keep the figures.
Owns: the order, the table. Never does: measure (`benchmarks.gpu_rows` does, a process for each). Without a GPU it says so.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NAMES = ("ceilings", "llama", "qwen", "gpt-oss", "attention", "prefill", "gaps", "throughput")
LIMIT_S = 300
HEADS = ("measured", "value", "unit", "share", "goal")


def why_not() -> str:
    """Why nothing can be measured here; empty where it can."""
    import torch

    if torch.cuda.is_available():
        return ""
    built = torch.version.cuda or torch.version.hip
    reason = "torch sees none" if built else f"torch {torch.__version__} is built without CUDA and ROCm"
    return f"benchmarks.gpu: there is no GPU here ({reason}); run it on a machine with one."


def measure(name: str, limit_s: float) -> list[dict[str, Any]]:
    """The figures of one process; a line that says what went wrong where it failed."""
    command = [sys.executable, "-m", "benchmarks.gpu_rows", name]
    begin = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
        said, problems, code = done.stdout, done.stderr, done.returncode
    except subprocess.TimeoutExpired as late:
        said = (late.stdout or b"").decode()
        problems, code = f"not done after {limit_s:g} s", 1
    found = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    if code:
        last = problems.strip().splitlines()[-1:] or ["no word"]
        found.append({"row": f"{name} failed", "value": None, "unit": last[0]})
    print(f"{name}: {time.perf_counter() - begin:.0f} s", file=sys.stderr)
    return found


def table(figures: Sequence[dict[str, Any]]) -> str:
    """As Markdown."""
    lines = ["| " + " | ".join(HEADS) + " |", "|---" * len(HEADS) + "|"]
    for one in figures:
        value = "" if one["value"] is None else f"{one['value']:.4g}"
        share = one.get("share")
        shown = "" if share is None else f"{share:.0%} of {one['of']}"
        goal = one.get("goal")
        wanted = f"≥ {goal:.0%}" if isinstance(goal, float) else goal or ""
        lines.append(f"| {one['row']} | {value} | {one['unit']} | {shown} | {wanted} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds of one measurement")
    parser.add_argument("--json", type=Path, help="where to keep the figures")
    options = parser.parse_args()
    reason = why_not()
    if reason:
        print(reason, file=sys.stderr)
        return 2
    figures: list[dict[str, Any]] = []
    for name in options.only:
        figures += measure(name, options.limit)
        if options.json is not None:
            options.json.write_text(json.dumps(figures, indent=1))
    print(table(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
