"""S7, in process: chats whose answers follow a JSON schema, against the same chats without one; and the masks' share of a step.

Owns: that scenario. Run: `python -m benchmarks.grammars --model PATH [--backend xgrammar] [--no-white-space]`.

16 chats, 8 at a time, at most 64 tokens each, greedy. Without the schema every answer has 64 tokens; with it most end earlier,
so the time of an output token is told beside the time of the whole. Both alternate; medians after a warm-up.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from benchmarks.bandwidth import read_bandwidth
from core import LLM, SamplingParams
from core.api.structured_outputs import StructuredOutputsParams
from core_frontend.api.outputs import RequestOutput
from core_runtime.executor.model_runner import ModelRunner
from core_runtime.sampling.masks import MaskTable

SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "age", "city", "tags", "score"],
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer"},
        "city": {"enum": ["Berlin", "Paris", "Tokyo", "Lima"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 2, "maxItems": 4},
        "score": {"type": "number"},
    },
}
NUM_CHATS = 16
AT_ONCE = 8
MAX_TOKENS = 64
CLOCKED = (
    (ModelRunner, "execute", "steps"),
    (MaskTable, "ask", "masks"),
    (ModelRunner, "_propose_forced", "forced text"),
)
"""Owner, method, and under which name its seconds are counted."""


def clock(seconds: dict[str, float]) -> None:
    """Have the time of some methods of the engine added up by name."""
    for owner, method, name in CLOCKED:
        function = getattr(owner, method)
        setattr(owner, method, clocked(function, name, seconds))


def clocked(function: Callable[..., Any], name: str, seconds: dict[str, float]) -> Callable[..., Any]:
    """A function that counts its seconds."""

    def call(*args: Any, **options: Any) -> Any:
        begin = time.perf_counter()
        try:
            return function(*args, **options)
        finally:
            seconds[name] += time.perf_counter() - begin

    return call


def conversations(repetition: int) -> list[list[dict[str, str]]]:
    """Chats that were not asked before."""
    chats = []
    for number in range(NUM_CHATS):
        person = repetition * NUM_CHATS + number
        text = f"Describe person number {person} as a JSON object with name, age, city, tags and score."
        chats.append([{"role": "user", "content": text}])
    return chats


def figures(outputs: list[RequestOutput], wall_s: float, seconds: dict[str, float]) -> dict[str, float]:
    """What one repetition showed."""
    completions = [output.outputs[0] for output in outputs]
    num_tokens = sum(len(completion.token_ids) for completion in completions)
    valid = 0
    for completion in completions:
        if completion.finish_reason == "stop":
            valid += set(json.loads(completion.text)) == set(SCHEMA["required"])
    work = seconds["masks"] + seconds["forced text"]
    return {
        "wall_s": wall_s,
        "tokens": num_tokens,
        "ms_per_token": 1000 * wall_s / num_tokens,
        "whole_answers": valid,
        "mask_share": work / seconds["steps"],
    }


def medians(rows: list[dict[str, float]]) -> dict[str, float]:
    """Of each figure."""
    return {name: round(statistics.median(row[name] for row in rows), 4) for name in rows[0]}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--no-white-space", action="store_true", help="JSON without optional white space")
    return parser.parse_args()


def main() -> None:
    """Measure and print, a JSON object a line."""
    options = arguments()
    seconds: dict[str, float] = defaultdict(float)
    clock(seconds)
    wanted = StructuredOutputsParams(
        json=SCHEMA, backend=options.backend, disable_any_whitespace=options.no_white_space
    )
    kinds = {
        "without": SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True),
        "with": SamplingParams(temperature=0, max_tokens=MAX_TOKENS, structured_outputs=wanted),
    }
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in kinds}
    with LLM(model=options.model, max_model_len=512, max_num_seqs=AT_ONCE) as llm:
        for repetition in range(options.repetitions + 1):
            for name, params in kinds.items():
                chats = conversations(repetition)
                seconds.clear()
                llm.reset_prefix_cache()
                begin = time.perf_counter()
                outputs = llm.chat(chats, params, use_tqdm=False)
                wall_s = time.perf_counter() - begin
                if repetition:
                    rows[name].append(figures(outputs, wall_s, seconds))
        stats = llm.stats()
    found = {name: medians(kind) for name, kind in rows.items()}
    for name, figure in found.items():
        print(json.dumps({"schema": name, **figure}))
    ratios = {
        "wall": round(found["with"]["wall_s"] / found["without"]["wall_s"], 3),
        "per_token": round(found["with"]["ms_per_token"] / found["without"]["ms_per_token"], 3),
        "forced_drafts": stats.spec_num_draft_tokens,
        "accepted": stats.spec_num_accepted_tokens,
        "read_gb_s": round(read_bandwidth(), 1),
    }
    print(json.dumps(ratios))


if __name__ == "__main__":
    main()
