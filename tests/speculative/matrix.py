"""Tokens and log-probabilities with every kind of draft against those without, however a run goes: `make test-drafts`.

Owns: the proposers, the ways to run, and the table of `docs/speculation.md`. Called by: `python -m tests.speculative.matrix`,
and by a test that runs a few of the pairs.
"""

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from core import LLM, SamplingParams, StructuredOutputsParams
from core.api.stats import SchedulerStats
from tests.inside import core_of
from tests.speculative import checkpoints
from tests.tiny_models import save_checkpoint

PROMPTS = [
    "the quick brown fox jumps over the lazy dog and the quick brown fox jumps again",
    "abcabcabcabcabcabcabc",
    "z",
    "the quick brown fox jumps over the lazy dog and then sleeps",
    "yes, abc; no,",
]
FIXED: dict[str, Any] = {"max_tokens": 24, "logprobs": 2}
HELD = StructuredOutputsParams(regex="(yes|no), [a-f]{3,9}; (up|down)")
ASKED = [
    SamplingParams(temperature=0, bad_words=["a", "b "], ignore_eos=True, **FIXED),
    SamplingParams(temperature=0.9, seed=5, top_p=0.9, ignore_eos=True, **FIXED),
    SamplingParams(temperature=1.2, seed=6, top_k=50, repetition_penalty=1.1, min_tokens=9, **FIXED),
    SamplingParams(temperature=0.7, seed=7, min_p=0.05, presence_penalty=0.5, n=2, ignore_eos=True, **FIXED),
    SamplingParams(temperature=1.0, seed=8, structured_outputs=HELD, **FIXED),
]
"""Greedy, seeded, filtered, with penalties, forbidden words, several choices, a minimum, and a grammar."""

WAYS: dict[str, dict[str, Any]] = {
    "in company": {},
    "chunks of 8": {"max_num_batched_tokens": 8},
    "cached prefix": {"rounds": 2},
    "preempted": {"blocks": "few", "rounds": 2},
    "planned ahead": {"async_scheduling": True},
    "chosen number": {"adaptive": True},
    "bfloat16": {"dtype": "bfloat16"},
}
"""rounds: the same requests again; blocks: too few for all at once; the rest are arguments."""

Bits = list[tuple[list[int], list[dict[int, float]]]]


@dataclass(frozen=True)
class Proposer:
    """One kind of draft. target, draft: checkpoints; draft None: the method needs none. few: blocks that hold one request of
    the largest length, and not all at once.
    """

    name: str
    method: str
    target: Path
    draft: Path | None = None
    keys: tuple[tuple[str, Any], ...] = ()
    few: int = 18

    def config(self, *, adaptive: bool) -> dict[str, Any]:
        """`--speculative-config`."""
        named = {"method": self.method, "num_speculative_tokens": 3, "adaptive": adaptive, **dict(self.keys)}
        return named if self.draft is None else {**named, "model": str(self.draft)}


def proposers(folder: Path) -> list[Proposer]:
    """Every kind, with tiny random checkpoints."""
    llama = save_checkpoint(folder / "llama")
    deepseek = checkpoints.save_mtp(folder / "with_mtp")
    other = save_checkpoint(folder / "other", seed=3, num_hidden_layers=1)
    target = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32).eval()
    eagle, _ = checkpoints.save_eagle(folder / "eagle", target)
    eagle3, _ = checkpoints.save_eagle3(folder / "eagle3", target)
    medusa, _ = checkpoints.save_medusa(folder / "medusa")
    speculator, _ = checkpoints.save_speculator(folder / "speculator")
    parallel = checkpoints.save_parallel(folder / "parallel")
    tree = (("num_speculative_tokens", 5), ("speculative_token_tree", "[(0,), (1,), (0, 0), (0, 1), (0, 0, 0)]"))
    return [
        Proposer("ngram", "ngram", llama, keys=(("prompt_lookup_min", 1), ("prompt_lookup_max", 3))),
        Proposer("suffix", "suffix", llama),
        Proposer("draft_model", "draft_model", llama, other),
        Proposer("draft_model, its target", "draft_model", llama, llama),
        Proposer("draft_model, a tree", "draft_model", llama, other, tree),
        Proposer("parallel", "parallel", llama, parallel),
        Proposer("eagle", "eagle", llama, eagle),
        Proposer("eagle3", "eagle3", llama, eagle3),
        Proposer("mtp", "mtp", deepseek, keys=(("num_speculative_tokens", 2),)),
        Proposer("medusa", "medusa", llama, medusa),
        Proposer("mlp_speculator", "mlp_speculator", llama, speculator),
    ]


def run(target: Path, rounds: int = 1, **arguments: Any) -> tuple[Bits, SchedulerStats]:
    """Tokens and log-probabilities of the last round."""
    given = {"max_model_len": 128, "max_num_seqs": 8, "use_tqdm_on_load": False, "dtype": "float32", **arguments}
    bits: Bits = []
    with LLM(model=str(target), **given) as llm:
        for _ in range(rounds):
            bits = []
            for output in llm.generate(PROMPTS, ASKED, use_tqdm=False):
                for choice in output.outputs:
                    places = [{token: one.logprob for token, one in place.items()} for place in choice.logprobs or []]
                    bits.append((list(choice.token_ids), places))
        stats = llm.stats()
        core_of(llm).scheduler.check_integrity()
    return bits, stats


class Matrix:
    """Compares, and remembers what runs without drafts gave."""

    def __init__(self) -> None:
        self._expected: dict[tuple[Path, str], Bits] = {}

    def compare(self, proposer: Proposer, way: str) -> SchedulerStats:
        """The statistics of a run with drafts. Raises AssertionError when a bit differs."""
        arguments = dict(WAYS[way])
        adaptive = arguments.pop("adaptive", False)
        if arguments.pop("blocks", None):
            arguments["num_gpu_blocks_override"] = proposer.few
        expected = self._plain(proposer.target, str(arguments.get("dtype", "float32")))
        bits, stats = run(proposer.target, **arguments, speculative_config=proposer.config(adaptive=adaptive))
        assert bits == expected, f"{proposer.name}, {way}: other bits than without drafts"
        return stats

    def _plain(self, target: Path, dtype: str) -> Bits:
        key = target, dtype
        if key not in self._expected:
            self._expected[key], _ = run(target, dtype=dtype)
        return self._expected[key]


def cell(stats: SchedulerStats) -> str:
    """What a pair showed."""
    return f"= {stats.spec_num_accepted_tokens}/{stats.spec_num_draft_tokens}"


def table(every: list[Proposer], compare: Callable[[Proposer, str], SchedulerStats]) -> str:
    """Markdown, a row a proposer."""
    lines = [f"| drafts | {' | '.join(WAYS)} |", f"| --- |{' --- |' * len(WAYS)}"]
    for proposer in every:
        cells = []
        for way in WAYS:
            cells.append(cell(compare(proposer, way)))
            print(f"{proposer.name}, {way}: {cells[-1]}", file=sys.stderr, flush=True)
        lines.append(f"| {proposer.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="core-drafts-") as name:
        print(table(proposers(Path(name)), Matrix().compare))


if __name__ == "__main__":
    main()
