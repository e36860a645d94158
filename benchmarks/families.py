"""Kinds of models beside transformers in bfloat16: prefill, decode, and the share of the memory's bandwidth that it reaches.

    python -m benchmarks.families [--models latent experts hybrid PATH] [--repeat 5] [--clock process] [--out families]

Owns: the timing of both engines in one run, one after the other in each round, a JSON file and a table of medians. Models have
dummy weights; PATH is a directory with a config.json. Linux and CPU only.

Prefill: a long prompt and its first token. Decode: the time of each further token after a prompt of 64, greedy.
With `--clock process` seconds are those of processors, which other work on a busy machine does not take, and there is no share
of the bandwidth. Bytes a token: bfloat16 weights that one token multiplies with, of experts the chosen ones alone.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from benchmarks.bandwidth import read_bandwidth
from benchmarks.family_models import MODELS, weight_bytes
from core import LLM, SamplingParams
from core_kit.checkpoints import write_tokenizer

SHORT_PROMPT = 64
BATCHES = (1, 8)
CLOCKS = {"wall": time.perf_counter, "process": time.process_time}


class Engine(Protocol):
    """One of the two that are compared."""

    def generate(self, prompts: list[list[int]], new_tokens: int) -> None:
        """Give all prompts so many tokens, greedily."""
        ...

    def close(self) -> None: ...


class Core:
    """This project, through `LLM`."""

    def __init__(self, folder: Path, longest: int) -> None:
        before = torch.get_num_threads()
        most = max(BATCHES)
        room = {"max_model_len": longest, "max_num_seqs": most, "kv_cache_memory_bytes": 512 << 20}
        self._llm = LLM(
            model=str(folder), load_format="dummy", dtype="bfloat16", enable_prefix_caching=False,
            max_num_batched_tokens=longest, use_tqdm_on_load=False, **room,
        )  # fmt: skip
        torch.set_num_threads(before)

    def generate(self, prompts: list[list[int]], new_tokens: int) -> None:
        params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)
        inputs = [{"prompt_token_ids": ids} for ids in prompts]
        self._llm.generate(inputs, params, use_tqdm=False)

    def close(self) -> None:
        self._llm.close()


class Transformers:
    """transformers with its cache, in a loop without the rest of `generate`."""

    def __init__(self, folder: Path) -> None:
        config = AutoConfig.from_pretrained(folder)
        self._model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()

    def generate(self, prompts: list[list[int]], new_tokens: int) -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        with torch.inference_mode():
            ids = torch.tensor(prompts)
            cache = DynamicCache(config=self._model.config)
            for _ in range(new_tokens):
                out = self._model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
                ids = out.logits[:, -1:].argmax(-1)
        torch.set_num_threads(threads)

    def close(self) -> None:
        del self._model
        gc.collect()


def prompts_of(count: int, length: int, vocab_size: int) -> list[list[int]]:
    return [[random.randrange(3, vocab_size) for _ in range(length)] for _ in range(count)]


def figures(engine: Engine, vocab_size: int, options: argparse.Namespace) -> dict[str, float]:
    """Tokens a second of one round."""
    clock = CLOCKS[options.clock]

    def seconds(prompts: list[list[int]], new_tokens: int) -> float:
        start = clock()
        engine.generate(prompts, new_tokens)
        return clock() - start

    found = {"prefill": options.prompt / seconds(prompts_of(1, options.prompt, vocab_size), 1)}
    for batch in BATCHES:
        prompts = prompts_of(batch, SHORT_PROMPT, vocab_size)
        whole = seconds(prompts, options.tokens)
        first = seconds(prompts, 1)
        found[f"decode_{batch}"] = batch * (options.tokens - 1) / max(whole - first, 1e-9)
    return found


def measure(name: str, config: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """All rounds of one model."""
    longest = max(options.prompt, SHORT_PROMPT) + options.tokens
    total, active = weight_bytes(config)
    rounds: dict[str, list[dict[str, float]]] = {"core": [], "transformers": []}
    bandwidth = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "config.json").write_text(json.dumps(config))
        write_tokenizer(path)
        engines: dict[str, Engine] = {"transformers": Transformers(path), "core": Core(path, longest)}
        for number in range(options.repeat + 1):
            bandwidth.append(read_bandwidth())
            for which, engine in engines.items():
                measured = figures(engine, config["vocab_size"], options)
                print(name, which, {key: round(value, 1) for key, value in measured.items()}, flush=True)
                if number:  # the first round warms up
                    rounds[which].append(measured)
        for engine in engines.values():
            engine.close()
    medians = {which: median_of(measured) for which, measured in rounds.items()}
    speed = statistics.median(bandwidth)
    reached = active * medians["core"]["decode_1"] / 1e9 / speed
    return {
        "model": name,
        "model_type": config["model_type"],
        "weight_bytes": total,
        "bytes_a_token": active,
        "bandwidth_gb": speed,
        "share": reached if options.clock == "wall" else None,
        "medians": medians,
        "rounds": rounds,
    }


def median_of(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}


HEAD = """# Kinds of models beside transformers

Written by `python -m benchmarks.families --out docs/families`. Models of random bfloat16 weights, one of each kind
(`benchmarks/family_models.py`), on the CPU; both engines in one run, one after the other in each round, medians of {repeat}
rounds after one that warms up. Tokens a second ({clock} clock), and how many times those of transformers: `prefill` of a
prompt of {tokens} tokens, `decode_1` and `decode_8` with one and with eight sequences. The share is that of the memory's
bandwidth, measured beside, which decoding one sequence reaches with the weights that a token needs.

"""


def table(results: list[dict[str, Any]]) -> str:
    """Markdown; each figure in tokens a second with how many times that of transformers."""
    keys = ["prefill", *(f"decode_{batch}" for batch in BATCHES)]
    lines = [
        "| model | weights, MB | a token, MB | " + " | ".join(keys) + " | share of bandwidth |",
        "|" + "---|" * (len(keys) + 4),
    ]
    for result in results:
        ours = result["medians"]["core"]
        theirs = result["medians"]["transformers"]
        cells = [f"{ours[key]:,.0f} ({ours[key] / theirs[key]:.1f}x)" for key in keys]
        sizes = [f"{result[key] / 1e6:.0f}" for key in ("weight_bytes", "bytes_a_token")]
        speed = f"{result['bandwidth_gb']:.0f} GB/s"
        share = speed if result["share"] is None else f"{result['share']:.0%} of {speed}"
        lines.append("| " + " | ".join([result["model_type"], *sizes, *cells, share]) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall", help="what a second is")
    parser.add_argument("--prompt", type=int, default=1024, help="tokens of the long prompt")
    parser.add_argument("--tokens", type=int, default=48, help="generated to time decode, at least 2")
    parser.add_argument("--out", type=Path, help="beginning of the names of a .json and a .md file")
    options = parser.parse_args()
    results = []
    for name in options.models:
        config = MODELS.get(name) or json.loads((Path(name) / "config.json").read_text())
        results.append(measure(name, config, options))
        print(table(results), flush=True)
    if options.out:
        options.out.with_suffix(".json").write_text(json.dumps(results, indent=1))
        text = HEAD.format(tokens=options.prompt, clock=options.clock, repeat=options.repeat)
        options.out.with_suffix(".md").write_text(text + table(results) + "\n")


if __name__ == "__main__":
    main()
