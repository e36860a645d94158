"""How much each quantization costs: perplexity on a fixed English text, beside bfloat16 weights of the same model.

    python -m benchmarks.accuracy [--model DIRECTORY|FILE.gguf] [--quantization int8 int8/int8_row fp8 ...]
    python -m benchmarks.accuracy [--model DIRECTORY|FILE.gguf] --kv-cache-dtype int8_per_token_head int4 ...

The second compares types of the KV cache instead, in a model with bfloat16 weights. A name may tell the precision of the
inputs behind a slash. A GGUF file is dequantized to a plain checkpoint first, in a temporary directory (`--keep` names one
that stays), because only plain checkpoints are quantized while they load. The loss is the rise of the perplexity, with its
standard error, which is large: a text of this length cannot tell 0.1% from 0.4%. The divergence (Kullback-Leibler, of the
whole distribution at each token) is what that loss is on average over texts that the model itself would write, and is known
ten times more exactly: methods are compared by it.
Owns: the text (`prose.txt`, written for this purpose: no model has seen it) and the table. Never does: measure speed.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.formats import put
from benchmarks.offline import gguf_path
from benchmarks.peer.checkpoints import TO_SAFETENSORS
from core import LLM, SamplingParams
from core.plugin.registry import PluginRegistry
from core_config.resolve import resolve

PROSE = Path(__file__).with_name("prose.txt")
METHODS = ("int8", "int8/int8_row", "int8/none", "fp8", "fp8/none", "mxfp4", "nvfp4")
LIKELY = 64
LEAST_SHARE = 1e-9
PART = {False: "accuracy", True: "kv_accuracy"}
SMALL: dict[str, Any] = {"device": "cpu", "max_num_seqs": 1, "max_num_batched_tokens": 512, "use_tqdm_on_load": False}


@dataclass(frozen=True, slots=True)
class Score:
    """What one way to hold the weights gives.

    name: of the method, as on the command line.
    nbytes: of the weights, or of a token in the KV cache, by the memory plan.
    logprobs: of each token of the text but the first, float64.
    likely: at each of them, logprobs of the most likely tokens.
    """

    name: str
    nbytes: int
    logprobs: torch.Tensor
    likely: list[dict[int, float]]

    @property
    def perplexity(self) -> float:
        """Of the whole text."""
        return math.exp(-float(self.logprobs.mean()))

    def loss(self, best: Score) -> tuple[float, float]:
        """By how much the perplexity is above that of `best`, relatively, and the standard error of that."""
        worse = best.logprobs - self.logprobs
        error = float(worse.std()) / math.sqrt(len(worse))
        return math.expm1(float(worse.mean())), error

    def divergence(self, best: Score) -> float:
        """The mean Kullback-Leibler divergence from the distributions of `best`; unlikely tokens count as one."""
        total = 0.0
        for mine, theirs in zip(self.likely, best.likely, strict=True):
            total += divergence(theirs, mine)
        return total / len(self.likely)


def divergence(best: dict[int, float], other: dict[int, float]) -> float:
    """Of two distributions, from the logprobs of the tokens that both name and of all others as one."""
    total = 0.0
    best_rest = 1.0
    other_rest = 1.0
    for token, logprob in best.items():
        if token not in other:
            continue
        share = math.exp(logprob)
        total += share * (logprob - other[token])
        best_rest -= share
        other_rest -= math.exp(other[token])
    best_rest = max(best_rest, LEAST_SHARE)
    other_rest = max(other_rest, LEAST_SHARE)
    return total + best_rest * math.log(best_rest / other_rest)


def engine_arguments(method: str) -> dict[str, Any]:
    """method: `bfloat16` or `float32` for plain weights, `kv/TYPE` for a KV cache, else NAME or NAME/ACTIVATION."""
    if method.startswith("kv/"):
        return {"dtype": "bfloat16", "kv_cache_dtype": method.removeprefix("kv/")}
    if method in ("bfloat16", "float32"):
        return {"dtype": method}
    name, _, activation = method.partition("/")
    own = {"activation": activation} if activation else {}
    return {"dtype": "bfloat16", "quantization": name, "quantization_config": own}


def score(model: Path, method: str, text: str) -> Score:
    """Run the text through the model."""
    given: dict[str, Any] = {"model": str(model), "max_model_len": 4096, "max_logprobs": LIKELY, **SMALL}
    given |= engine_arguments(method)
    plan = resolve(dict(given), context="llm", registry=PluginRegistry(), environ={}).memory
    planned = int(plan.kv_per_token) if method.startswith("kv/") else plan.weights
    llm = LLM(**given)
    asked = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=LIKELY)
    output = llm.generate(text, asked, use_tqdm=False)[0]
    llm.close()
    ids = output.prompt_token_ids[1:]
    entries = output.prompt_logprobs[1:]
    logprobs = [entry[token].logprob for entry, token in zip(entries, ids, strict=True)]
    likely = [{number: choice.logprob for number, choice in entry.items()} for entry in entries]
    return Score(method, planned, torch.tensor(logprobs, dtype=torch.float64), likely)


def plain_checkpoint(model: str | None, folder: Path) -> Path:
    """A directory of safetensors: `model` itself, or what a GGUF file (default: the embedded one) becomes in `folder`."""
    if model is not None and Path(model).is_dir():
        return Path(model)
    source = Path(gguf_path(model)).resolve()
    made = folder / source.stem
    if not made.exists():
        subprocess.run([sys.executable, "-P", "-c", TO_SAFETENSORS, str(source), str(made)], check=True)
    return made


def table(scores: list[Score]) -> Table:
    """One row a method; the first score is what the others are compared with."""
    best = scores[0]
    title = f"{len(best.logprobs)} tokens of {PROSE.name}"
    shown = Table("method", "bytes per number", "perplexity", "loss", "standard error", "divergence", title=title)
    for one in scores:
        loss, error = one.loss(best)
        bytes_each = 2 * one.nbytes / best.nbytes
        apart = one.divergence(best)
        figures = (f"{bytes_each:.3f}", f"{one.perplexity:.4f}", f"{loss:+.2%}", f"{error:.2%}", f"{apart:.3%}")
        shown.add_row(one.name, *figures)
    return shown


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a plain checkpoint or a GGUF file; default: the embedded model")
    parser.add_argument("--quantization", nargs="+", default=METHODS, metavar="NAME[/ACTIVATION]")
    parser.add_argument("--kv-cache-dtype", nargs="+", default=(), metavar="TYPE", help="compare these instead")
    parser.add_argument("--keep", type=Path, help="where the plain copy of a GGUF file stays")
    parser.add_argument(
        "--out", type=Path, help="a JSON file in whose part (`accuracy`, `kv_accuracy`) the model's scores are replaced"
    )
    parser.add_argument("--called", default="default", help="the model's name there")
    asked = parser.parse_args()
    text = PROSE.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as passing:
        model = plain_checkpoint(asked.model, asked.keep or Path(passing))
        of_kv = bool(asked.kv_cache_dtype)
        methods = [f"kv/{dtype}" for dtype in ("bfloat16", *asked.kv_cache_dtype)]
        scores = [score(model, method, text) for method in (methods if of_kv else ("bfloat16", *asked.quantization))]
    Console().print(table(scores))
    if asked.out:
        part = PART[of_kv]
        known = json.loads(asked.out.read_text()).get(part, {}) if asked.out.exists() else {}
        put(asked.out, part, {**known, asked.called: [_recorded(one, scores[0]) for one in scores[1:]]})


def _recorded(one: Score, best: Score) -> dict[str, Any]:
    loss, error = one.loss(best)
    return {
        "method": one.name.removeprefix("kv/"),
        "bytes": round(2 * one.nbytes / best.nbytes, 3),
        "loss": round(loss, 5),
        "error": round(error, 5),
        "divergence": round(one.divergence(best), 5),
    }


if __name__ == "__main__":
    main()
