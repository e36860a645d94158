"""Two forms of the engine beside each other, in pairs: `python -m benchmarks.pairs --b-checkout ../before`.

Owns: the interleaved comparison of two checkouts, or of two sets of engine arguments, and its 95% interval. Never does:
compare with another engine; `benchmarks/peers.py` does.

Each side holds a model in a process of its own, run by the `.venv` of its checkout where there is one, and is idle while the
other one is measured. A pair runs a scenario once on both sides with the same new prompts; the order alternates. `sampled` is
text that earlier text does not foretell: answers at temperature 1.

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
PROMPT_TOKENS = 128
ANSWER_TOKENS = 256

Figures = dict[str, float]


class Side:
    """One form of the engine, in a process of its own.

    checkout: where its code lies. arguments: of `LLM`. Raises SystemExit when it ends.
    """

    def __init__(self, name: str, checkout: Path, arguments: str) -> None:
        self.name = name
        command = [python_of(checkout), str(Path(__file__).resolve()), "--serve", arguments]
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        self._process = subprocess.Popen(
            command, cwd=checkout, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def measure(self, scenario: str) -> Figures:
        """One repetition."""
        asked = self._process.stdin
        told = self._process.stdout
        assert asked is not None and told is not None, "both are pipes"
        asked.write(scenario + "\n")
        asked.flush()
        for line in told:
            if line.startswith("{"):  # the engine's own lines are none of figures
                return dict(json.loads(line))
        code = self._process.wait()
        raise SystemExit(f"Side {self.name} ended with {code}; what it said stands above.")

    def close(self) -> None:
        """End the process."""
        self._process.communicate("", timeout=60)


def python_of(checkout: Path) -> str:
    """The interpreter of a checkout's own environment, in which its distributions are installed; else this one."""
    own = checkout / ".venv" / "bin" / "python"
    return str(own) if own.exists() else sys.executable


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
        num_sampled = SAMPLED.get(name)
        if num_sampled is None:
            figures = SCENARIOS[name](engine, prompts)
        else:
            batch = prompts.batch(num_sampled, PROMPT_TOKENS)
            figures = sampled(engine, batch)
        print(json.dumps(figures), flush=True)


def sampled(engine: Any, prompts: list[list[int]]) -> Figures:
    """Answers of `ANSWER_TOKENS` at temperature 1, a seed for each prompt; the whole run."""
    from core import SamplingParams

    params: list[SamplingParams] = []
    for ids in prompts:
        one = SamplingParams(
            temperature=1.0, seed=sum(ids), max_tokens=ANSWER_TOKENS, ignore_eos=True, detokenize=False
        )
        params.append(one)
    inputs = [{"prompt_token_ids": ids} for ids in prompts]
    start = time.perf_counter()
    engine._llm.generate(inputs, params, use_tqdm=False)
    elapsed = time.perf_counter() - start
    num_tokens = ANSWER_TOKENS * len(prompts)
    return {"output tok/s": num_tokens / elapsed}


def interval(ratios: list[float]) -> str:
    """Geometric mean of A over B and its 95% interval."""
    logs = [math.log(ratio) for ratio in ratios]
    middle = statistics.mean(logs)
    freedom = len(logs) - 1
    listed = [degrees for degrees in T_95 if degrees <= freedom]
    if not listed:
        return f"{math.exp(middle):.3f} (too few pairs for an interval)"
    error = statistics.stdev(logs) / math.sqrt(len(logs))
    width = T_95[max(listed)] * error
    low = math.exp(middle - width)
    high = math.exp(middle + width)
    return f"{math.exp(middle):.3f} [{low:.3f}, {high:.3f}]"


def compare(sides: list[Side], scenario: str, pairs: int) -> None:
    """Print each figure of a scenario: the median of both sides, and A over B."""
    ours, theirs = measured(sides, scenario, pairs)
    for figure in ours[0]:
        own = [row[figure] for row in ours]
        other = [row[figure] for row in theirs]
        ratios = [mine / yours for mine, yours in zip(own, other, strict=True)]
        told = {
            "scenario": scenario,
            "figure": figure,
            "A": statistics.median(own),
            "B": statistics.median(other),
            "A/B": interval(ratios),
            "pairs": pairs,
        }
        print(json.dumps(told), flush=True)


def measured(sides: list[Side], scenario: str, pairs: int) -> tuple[list[Figures], list[Figures]]:
    """The figures of both sides, in pairs one after the other; which side comes first changes."""
    rows: tuple[list[Figures], list[Figures]] = ([], [])
    for number in range(pairs + 1):
        order = (0, 1) if number % 2 else (1, 0)
        for side in order:
            figures = sides[side].measure(scenario)
            if number:  # the first pair warms up
                rows[side].append(figures)
    return rows


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
    first = Side("A", options.a_checkout.resolve(), options.a)
    second = Side("B", options.b_checkout.resolve(), options.b)
    sides = [first, second]
    try:
        for scenario in options.scenarios:
            compare(sides, scenario, options.pairs)
    finally:
        for side in sides:
            side.close()


if __name__ == "__main__":
    main()
