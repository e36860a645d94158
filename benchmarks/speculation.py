"""What drafts from earlier text bring, ours and our peers': `python -m benchmarks.speculation [--peers vllm,llama.cpp]`.

Owns: that comparison. Never does: install a peer; it uses those that `benchmarks/peers.py` has installed.

Every engine runs in a process of its own and stands still while another one is measured. In each repetition each of them gets
the same new prompts, in an order that changes. Decode speed is that of all tokens but the first of each answer: the time of a
whole run less that of a run of one token with other prompts of the same kind. Answers of ours must be equal with every
proposer. A JSON object a line; medians after a warm-up.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import statistics
import sys
from pathlib import Path

from rich.console import Console
from tokenizers import Tokenizer

from benchmarks.peer.checkpoints import Checkpoints
from benchmarks.peer.contenders import Contender, Launches
from benchmarks.peer.environment import Environments, PeerError
from benchmarks.peer.fleet import Fleet
from benchmarks.speculation_texts import KINDS, prompt

DRAFTS = 8
REQUEST_LIMIT_S = 600.0
NGRAM = {"method": "ngram", "num_speculative_tokens": DRAFTS, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
LONG = {"method": "suffix", "suffix_decoding_max_tree_depth": 80, "suffix_decoding_max_spec_factor": 4.0}
"""Drafts of up to 64 tokens, as many as llama.cpp's ngram-mod."""
QUIET = {"disable_log_stats": False}
"""vLLM counts its drafts only where it logs."""
CONTENDERS = (
    Contender("core", "core", "bf16"),
    Contender("core ngram", "core", "bf16", {"speculative_config": NGRAM}),
    Contender("core suffix", "core", "bf16", {"speculative_config": {"method": "suffix"}}),
    Contender("core suffix long", "core", "bf16", {"speculative_config": LONG}),
    Contender("vLLM", "vllm", "bf16", QUIET),
    Contender("vLLM ngram", "vllm", "bf16", QUIET | {"speculative_config": NGRAM}),
    Contender("llama.cpp", "llama.cpp", "gguf-bf16"),
    Contender("llama.cpp ngram-simple", "llama.cpp", "gguf-bf16", {"spec-type": "ngram-simple"}),
    Contender("llama.cpp ngram-mod", "llama.cpp", "gguf-bf16", {"spec-type": "ngram-mod"}),
    Contender("llama.cpp ngram-cache", "llama.cpp", "gguf-bf16", {"spec-type": "ngram-cache"}),
)

Figures = dict[str, float]


class Bench:
    """Runs contenders on the same prompts. tokens: of each answer."""

    def __init__(self, fleet: Fleet, launches: Launches, tokenizer: Tokenizer, tokens: int) -> None:
        self._fleet = fleet
        self._launches = launches
        self._tokenizer = tokenizer
        self._tokens = tokens
        self._number = 0

    def prompts(self, kind: str, count: int) -> list[list[int]]:
        """So many new ones."""
        numbers = range(self._number, self._number + count)
        self._number += count
        texts = [prompt(kind, number) for number in numbers]
        return [self._tokenizer.encode(text, add_special_tokens=False).ids for text in texts]

    def measure(self, contender: Contender, short: list[list[int]], whole: list[list[int]]) -> tuple[Figures, list]:
        """One repetition, and its answers. short, whole: prompts for one token, and for all. Raises PeerError."""
        with self._fleet.worker(contender.name, self._launches.worker(contender)) as worker:
            first = worker.ask({"do": "generate", "prompts": short, "max_tokens": 1}, REQUEST_LIMIT_S)
            before = worker.ask({"do": "drafts"}, REQUEST_LIMIT_S)["result"]
            done = worker.ask({"do": "generate", "prompts": whole, "max_tokens": self._tokens}, REQUEST_LIMIT_S)
            after = worker.ask({"do": "drafts"}, REQUEST_LIMIT_S)["result"]
        drafted, accepted = after[0] - before[0], after[1] - before[1]
        decoded = len(whole) * (self._tokens - 1)
        figures = {"tok/s": decoded / (done["seconds"] - first["seconds"]), "accepted a token": accepted / decoded}
        if drafted:
            figures["acceptance"] = accepted / drafted
        return figures, done["result"]


def repetition(
    bench: Bench, contenders: list[Contender], kind: str, batch: int, rng: random.Random, lost: set[str]
) -> dict[str, Figures]:
    """Every contender once, with the same prompts. lost: those that failed; they are named and left out from then on."""
    short, whole = bench.prompts(kind, batch), bench.prompts(kind, batch)
    found: dict[str, Figures] = {}
    answers: dict[str, list] = {}
    for contender in rng.sample(contenders, len(contenders)):
        if contender.name in lost:
            continue
        try:
            found[contender.name], answers[contender.name] = bench.measure(contender, short, whole)
        except PeerError as error:
            lost.add(contender.name)
            print(json.dumps({"engine": contender.name, "takes no part": str(error)[:300]}), flush=True)
    ours = [answer for name, answer in answers.items() if name.startswith("core")]
    if any(answer != ours[0] for answer in ours):
        raise SystemExit(f"{kind}, {batch} at once: our answers differ with drafts.")
    return found


def report(kind: str, batch: int, rows: list[dict[str, Figures]]) -> None:
    """Print the medians of each contender, and its speed over the same engine without drafts."""
    medians: dict[str, Figures] = {}
    for name in rows[0]:
        own = [row[name] for row in rows if name in row]
        medians[name] = {figure: statistics.median(row.get(figure, 0.0) for row in own) for figure in own[0]}
    for name, figures in medians.items():
        plain = medians.get(name.split(" ")[0])
        if plain is not None:
            figures["times plain"] = figures["tok/s"] / plain["tok/s"]
        shown = {figure: round(value, 3) for figure, value in figures.items()}
        print(json.dumps({"text": kind, "batch": batch, "engine": name, **shown}), flush=True)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default="", help="of vllm,llama.cpp; default: none")
    parser.add_argument("--texts", default=",".join(KINDS), help=f"of {', '.join(KINDS)}")
    parser.add_argument("--batches", default="1,16", help="requests at once")
    parser.add_argument("--repeats", type=int, default=3, help="counted repetitions after a warm-up")
    parser.add_argument("--tokens", type=int, default=192, help="of each answer")
    parser.add_argument("--only", default="", help="contenders by name, such as 'core,core suffix'")
    parser.add_argument(
        "--env-dir", type=Path, default=Path.home() / ".cache" / "core-peers", help="environments, copies"
    )
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    options = arguments()
    for number in (signal.SIGTERM, signal.SIGHUP):  # as with ^C, what was started is ended first
        signal.signal(number, lambda *_: sys.exit("the benchmark was told to end"))
    console = Console(stderr=True)
    environments = Environments(options.env_dir, console, offline=True)
    checkpoints = Checkpoints(None, options.env_dir / "models", environments, console)
    launches = Launches(environments, checkpoints, options.env_dir / "work")
    fleet = Fleet(launches, launches.work / "logs")
    tokenizer = Tokenizer.from_file(str(checkpoints.path("bf16") / "tokenizer.json"))
    bench = Bench(fleet, launches, tokenizer, options.tokens)
    peers = ["core", *options.peers.split(",")]
    wanted = options.only.split(",") if options.only else [contender.name for contender in CONTENDERS]
    taking_part = [contender for contender in CONTENDERS if contender.peer in peers and contender.name in wanted]
    rng = random.Random(0)
    lost: set[str] = set()
    try:
        for kind in options.texts.split(","):
            for batch in map(int, options.batches.split(",")):
                rows = [repetition(bench, taking_part, kind, batch, rng, lost) for _ in range(options.repeats + 1)]
                report(kind, batch, rows[1:])
    finally:
        fleet.close()


if __name__ == "__main__":
    main()
