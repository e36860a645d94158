"""Two forms of the engine beside each other, in pairs: `python -m benchmarks.pairs --b-checkout ../before`.

Owns: the interleaved comparison of two checkouts, or of two sets of engine arguments, and its 95% interval. Never does:
compare with another engine; `benchmarks/peers.py` does.

Both sides hold a model in a process of their own and wait while the other one is measured. Each pair runs a scenario once
on both, in an order that changes, with the same new prompts. `sampled` is text that earlier text does not foretell: answers
at temperature 1.

    python -m benchmarks.pairs --scenarios sampled sampled16 --a '{"speculative_config": {"method": "ngram"}}'
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
T_95 = {5: 2.57, 10: 2.23, 15: 2.13, 20: 2.09, 30: 2.04}
"""Student's t for a 95% interval, by degrees of freedom; of the next smaller one that is listed."""
SAMPLED = {"sampled": 1, "sampled16": 16}
"""Requests at once, by scenario at temperature 1."""

Figures = dict[str, float]


class Side:
    """One form of the engine, in a process of its own.

    checkout: where its code lies. arguments: of `LLM`. Raises SystemExit when it ends.
    """

    def __init__(self, name: str, checkout: Path, arguments: str) -> None:
        self.name = name
        command = [sys.executable, str(Path(__file__).resolve()), "--serve", arguments]
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        self._process = subprocess.Popen(
            command, cwd=checkout, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def measure(self, scenario: str) -> Figures:
        """One repetition."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(scenario + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):
                return dict(json.loads(line))
        raise SystemExit(f"Side {self.name} ended with {self._process.wait()}; what it said stands above.")

    def close(self) -> None:
        """End the process."""
        self._process.communicate("", timeout=60)


def serve(arguments: dict[str, Any]) -> None:
    """What a side's process does: measure the scenarios that it reads, a line each."""
    from benchmarks.offline import SCENARIOS, CoreEngine
    from benchmarks.prompts import PromptMaker

    options = argparse.Namespace(model=arguments.pop("model", None), no_prefix_caching=False)
    options.engine_arguments = arguments
    engine = CoreEngine(options)
    prompts = PromptMaker(engine.encode)
    for line in sys.stdin:
        name = line.strip()
        batch = SAMPLED.get(name)
        figures = SCENARIOS[name](engine, prompts) if batch is None else sampled(engine, prompts.batch(batch, 128))
        print(json.dumps(figures), flush=True)


def sampled(engine: Any, prompts: list[list[int]]) -> Figures:
    """Answers of 256 tokens at temperature 1, a seed for each prompt; the whole run."""
    from core import SamplingParams

    params = [
        SamplingParams(temperature=1.0, seed=sum(ids), max_tokens=256, ignore_eos=True, detokenize=False)
        for ids in prompts
    ]
    inputs = [{"prompt_token_ids": ids} for ids in prompts]
    start = time.perf_counter()
    engine._llm.generate(inputs, params, use_tqdm=False)
    return {"output tok/s": 256 * len(prompts) / (time.perf_counter() - start)}


def interval(ratios: list[float]) -> str:
    """Geometric mean of A over B and its 95% interval."""
    logs = [math.log(ratio) for ratio in ratios]
    middle = statistics.mean(logs)
    freedom = len(logs) - 1
    listed = [degrees for degrees in T_95 if degrees <= freedom]
    if not listed:
        return f"{math.exp(middle):.3f} (too few pairs for an interval)"
    width = T_95[max(listed)] * statistics.stdev(logs) / math.sqrt(len(logs))
    return f"{math.exp(middle):.3f} [{math.exp(middle - width):.3f}, {math.exp(middle + width):.3f}]"


def compare(sides: list[Side], scenario: str, pairs: int) -> None:
    """Print each figure of a scenario: the median of both sides, and A over B."""
    rows: list[list[Figures]] = [[], []]
    for number in range(pairs + 1):
        order = (0, 1) if number % 2 else (1, 0)
        for side in order:
            figures = sides[side].measure(scenario)
            if number:  # the first pair warms up
                rows[side].append(figures)
    for figure in rows[0][0]:
        own, other = ([row[figure] for row in side] for side in rows)
        ratios = [mine / theirs for mine, theirs in zip(own, other, strict=True)]
        result = {"scenario": scenario, "figure": figure, "A": statistics.median(own), "B": statistics.median(other)}
        print(json.dumps(result | {"A/B": interval(ratios), "pairs": pairs}), flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--a", default="{}", metavar="JSON", help="arguments of LLM for side A")
    parser.add_argument("--b", default="{}", metavar="JSON", help="for side B")
    parser.add_argument("--a-checkout", type=Path, default=HERE, help="side A's code")
    parser.add_argument("--b-checkout", type=Path, default=HERE, help="side B's code")
    parser.add_argument("--scenarios", nargs="+", default=["s1", "s2", "s3"], help="s1 to s4, sampled, sampled16")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        serve(json.loads(options.serve))
        return
    sides = [Side("A", options.a_checkout.resolve(), options.a), Side("B", options.b_checkout.resolve(), options.b)]
    try:
        for scenario in options.scenarios:
            compare(sides, scenario, options.pairs)
    finally:
        for side in sides:
            side.close()


if __name__ == "__main__":
    main()
