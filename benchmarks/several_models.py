"""Several models in the memory of fewer: requests at random, what a change of models costs, and memory.

    python -m benchmarks.several_models MODEL MODEL ... [--requests 300] [--budget-of 1.5] [--history 3000]

Owns: one measurement of `core serve A B C --model-budget`. Never does: start another engine. The budget is that many times the
largest model's planned bytes; memory is the resident memory of the engine processes, beside that of the same processes asleep,
which the plan does not count. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import psutil

from core_commands.several.entries import read_entries
from core_config.arguments.parser import Parser

PROSE = (Path(__file__).parent / "prose.txt").read_text(encoding="utf-8")
WOKEN = re.compile(r"Model '.*' is awake after ([\d.]+) s")
SLEPT = re.compile(r"Model '.*' is asleep after ([\d.]+) s")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--budget-of", type=float, default=1.5)
    parser.add_argument("--history", type=int, default=3000, help="tokens of the chat that is asked again after a swap")
    options, words = parser.parse_known_args()
    problems: list[str] = []
    entries = read_entries(Parser(collects=True).parse([*options.models, *words]), problems)
    if problems:
        raise SystemExit("\n".join(problems))
    budget = int(options.budget_of * max(entry.awake_bytes for entry in entries))
    command = [
        sys.executable,
        "-m",
        "core",
        "serve",
        *options.models,
        "--port",
        "0",
        "--model-budget",
        str(budget),
        *words,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        log: list[str] = []
        assert server.stderr is not None and server.stdout is not None
        threading.Thread(target=lambda: log.extend(server.stderr or ()), daemon=True).start()
        url = next(found[1] for line in server.stdout if (found := re.search(r" at (http://\S+) ", line)))
        threading.Thread(target=lambda: list(server.stdout or ()), daemon=True).start()
        started = len(log)
        try:
            figures = {"budget_mb": budget / 1e6, **measure(url, entries, options, server.pid)}
            print(json.dumps(figures | changes(log[started:])))
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(60)


def measure(url: str, entries: list[Any], options: argparse.Namespace, pid: int) -> dict[str, Any]:
    """Ask at random, and then a long chat before and after a swap."""
    draw = random.Random(0)
    failed, peak = 0, 0
    waits: list[float] = []
    client = httpx.Client(base_url=url, timeout=300)
    for _ in range(options.requests):
        entry = draw.choice(entries)
        begin = time.perf_counter()
        answer = ask(client, entry, PROSE[: draw.randint(20, 400)], 8)
        failed += answer.status_code != 200
        waits.append(time.perf_counter() - begin)
        peak = max(peak, resident(pid))
    found: dict[str, Any] = {
        "failed": failed,
        "mean_s": statistics.fmean(waits),
        "p99_s": sorted(waits)[int(0.99 * len(waits))],
    }
    found |= {"peak_mb": peak / 1e6}
    generative = [entry for entry in entries if not is_pooling(entry)]
    if len(generative) > 1:
        found |= long_chat(client, generative, options.history)
    return found


def long_chat(client: httpx.Client, entries: list[Any], length: int) -> dict[str, float]:
    """A chat of `length` tokens: its first time, again while it is cached, and again after another model was awake."""
    text = (PROSE * 20)[: 4 * length]
    own, others = entries[0], entries[1:]
    seconds = {}
    for name in ("prefill_s", "cached_s", "after_swap_s"):
        if name == "after_swap_s":
            for other in others:
                ask(client, other, "Hello", 1)
        begin = time.perf_counter()
        answer = ask(client, own, text, 1)
        seconds[name] = time.perf_counter() - begin
        assert answer.status_code == 200, answer.text
    return seconds


def ask(client: httpx.Client, entry: Any, text: str, num_tokens: int) -> httpx.Response:
    """Complete a text, or embed it where the model completes none."""
    if is_pooling(entry):
        return client.post("/v1/embeddings", json={"model": entry.name, "input": text})
    body = {"model": entry.name, "prompt": text, "max_tokens": num_tokens, "temperature": 0}
    return client.post("/v1/completions", json=body)


def is_pooling(entry: Any) -> bool:
    """Whether a model gives vectors, by its name: the measurement knows one such model."""
    return "minilm" in entry.values["model"].lower()


def resident(pid: int) -> int:
    """Return the memory of the engine processes that no other process shares, in bytes."""
    children = psutil.Process(pid).children(recursive=True)
    return sum(each.memory_full_info().uss for each in children if "core.engine.process" in each.cmdline())


def changes(log: list[str]) -> dict[str, float]:
    """Return how long models took to wake and to fall asleep."""
    found: dict[str, float] = {}
    for name, pattern in (("wake", WOKEN), ("sleep", SLEPT)):
        times = sorted(float(match[1]) for line in log if (match := pattern.search(line)))
        if times:
            found[f"{name}s"] = len(times)
            found[f"{name}_p50_s"] = times[len(times) // 2]
            found[f"{name}_p99_s"] = times[int(0.99 * len(times))]
    return found


if __name__ == "__main__":
    main()
