"""S1 to S5, S7 and S8: sizes, who takes part, and what one repetition measures.

Owns: the workloads. Never does: start or stop engines. Called by: the session.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.peer.arrivals import arrival_times, arrive, goodput
from benchmarks.peer.environment import PeerError
from benchmarks.prompts import PromptMaker
from benchmarks.startup import Server
from benchmarks.streaming import load

Figures = dict[str, float]
Prompts = list[list[int]]
Generate = Callable[[Prompts, int], float]
"""Runs prompts for so many tokens; the seconds that took."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much each scenario runs. S5: 16 at a time."""

    s1_out: int = 256
    s2_in: int = 1024
    s3_requests: int = 64
    s3_out: int = 128
    s4_requests: int = 32
    s5_requests: int = 64
    arrivals: int = 48
    rates: tuple[float, ...] = (2.0, 4.0, 6.0, 8.0)
    chats: int = 16
    sentences: int = 256


FULL = Sizes()
QUICK = replace(
    FULL, s1_out=96, s3_requests=32, s3_out=32, s4_requests=16, s5_requests=32, arrivals=16, rates=(2.0, 6.0), chats=8
)

OFFLINE = {
    "s1": "one stream: 128 tokens in, 256 out",
    "s2": "one prompt of 1,024 tokens, 1 out",
    "s3": "64 requests at once, 128 in, 128 out",
    "s4": "32 requests that share a new prefix of 768 tokens, 32 of their own, 64 out",
}
SERVED = {
    "s5": "HTTP, streamed: 64 requests, 16 at a time, 128 in, 128 out",
    "s5-poisson": "HTTP, Poisson arrivals: good requests a second (TTFT at most 500 ms, mean ITL at most 30 ms)",
    "s7": "16 chats, 8 at a time, 64 tokens, with a JSON schema against without",
}
OTHER = {"s6": "install and start", "s8": "MiniLM: 256 sentences of about 38 tokens, batches of 32"}
WHAT = OFFLINE | SERVED | OTHER

TAKE_PART = {
    "s1": (
        "core bf16",
        "core Q4_1",
        "vLLM bf16",
        "llama.cpp bf16",
        "llama.cpp Q4_1",
        "ik_llama.cpp Q4_1",
        "transformers bf16",
        "OpenVINO fp16",
        "OpenVINO int8",
    ),
    "s2": (
        "core bf16",
        "core Q4_1",
        "vLLM bf16",
        "llama.cpp bf16",
        "llama.cpp Q4_1",
        "ik_llama.cpp Q4_1",
        "transformers bf16",
        "OpenVINO fp16",
        "OpenVINO int8",
    ),
    "s3": (
        "core bf16",
        "core W8A8",
        "vLLM bf16",
        "llama.cpp bf16",
        "llama.cpp Q8_0",
        "ik_llama.cpp Q8_0",
        "transformers bf16",
        "OpenVINO fp16",
        "OpenVINO int8",
    ),
    "s4": ("core bf16", "vLLM bf16", "llama.cpp bf16", "OpenVINO fp16"),
    "s5": ("core bf16", "vLLM bf16", "llama.cpp bf16"),
    "s5-poisson": ("core bf16", "vLLM bf16", "llama.cpp bf16"),
    "s7": ("core bf16", "vLLM bf16", "llama.cpp bf16"),
    "s8": ("core bf16", "transformers bf16", "llama.cpp bf16"),
}
ONCE = {("s3", "transformers bf16")}
"""Measured once instead of repeatedly: minutes, and far behind."""


def prompts_for(scenario: str, maker: PromptMaker, sizes: Sizes) -> list[Prompts]:
    """The prompts of one repetition, the same for every contender and never used again."""
    if scenario == "s1":
        return [maker.batch(1, 128), maker.batch(1, 128)]
    if scenario == "s2":
        return [maker.batch(1, sizes.s2_in)]
    if scenario == "s3":
        return [maker.batch(sizes.s3_requests, 128)]
    if scenario == "s4":
        return [maker.batch(sizes.s4_requests, 32, shared=768)]
    if scenario == "s5":
        return [maker.batch(sizes.s5_requests, 128)]
    if scenario == "s5-poisson":
        return [maker.batch(sizes.arrivals, 128) for _ in sizes.rates]
    return []


def run_offline(scenario: str, generate: Generate, prompts: list[Prompts], sizes: Sizes) -> Figures:
    """One repetition of S1 to S4."""
    if scenario == "s1":
        first, whole = generate(prompts[0], 1), generate(prompts[1], sizes.s1_out)
        return {"decode tok/s": (sizes.s1_out - 1) / (whole - first), "TTFT ms": 1e3 * first}
    if scenario == "s2":
        return {"prompt tok/s": sizes.s2_in / generate(prompts[0], 1)}
    if scenario == "s3":
        seconds = generate(prompts[0], sizes.s3_out)
        requests = sizes.s3_requests
        return {
            "output tok/s": requests * sizes.s3_out / seconds,
            "total tok/s": requests * (128 + sizes.s3_out) / seconds,
        }
    return {"seconds": generate(prompts[0], 64)}


def run_served(
    scenario: str, server: Server, prompts: list[Prompts], sizes: Sizes, extra: dict[str, Any], repetition: int
) -> Figures:
    """One repetition of S5 or S7. extra: fields that this server needs in a request. Raises ServerError."""
    if scenario == "s5":
        return asyncio.run(load(server.base, server.model, prompts[0], extra))
    if scenario == "s7":
        return chats(server, sizes.chats, extra, repetition)
    figures: Figures = {}
    for rate, batch in zip(sizes.rates, prompts, strict=True):
        times = arrival_times(rate, len(batch), seed=repetition)
        good = goodput(asyncio.run(arrive(server.base, server.model, batch, times, 128, extra)), rate)
        figures[f"good share at {rate:g}/s"] = good.share
        figures[f"good/s at {rate:g}/s"] = good.rate
    return figures | {"goodput": max(figures[f"good/s at {rate:g}/s"] for rate in sizes.rates)}


SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "age", "town", "likes"],
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer"},
        "town": {"enum": ["Oslo", "Cairo", "Quito", "Hanoi"]},
        "likes": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 2, "maxItems": 4},
    },
}


def chats(server: Server, count: int, extra: dict[str, Any], repetition: int) -> Figures:
    """Seconds a token with a schema over seconds a token without; an answer that ended by itself must fit the schema."""
    schema = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": SCHEMA}}

    def one(number: int, constrained: bool) -> tuple[int, bool]:
        question = f"Describe person {1000 * repetition + number} as JSON with name, age, town and likes."
        body: dict[str, Any] = {
            "model": server.model,
            "messages": [{"role": "user", "content": question}],
            "max_tokens": 64,
            "temperature": 0,
            **extra,
        }
        body |= {"response_format": schema} if constrained else {"ignore_eos": True}
        answer = server.post("/v1/chat/completions", body)
        choice = answer["choices"][0]
        fits = not constrained or choice["finish_reason"] != "stop" or fits_schema(choice["message"]["content"])
        return int(answer["usage"]["completion_tokens"]), fits

    seconds = {}
    for constrained in (False, True):
        start = time.perf_counter()
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda number, c=constrained: one(number, c), range(count)))
        seconds[constrained] = (time.perf_counter() - start) / sum(tokens for tokens, _ in answers)
        if not all(fits for _, fits in answers):
            raise PeerError("an answer does not fit the schema")
    return {
        "with / without": seconds[True] / seconds[False],
        "tok/s with": 1 / seconds[True],
        "tok/s without": 1 / seconds[False],
    }


def fits_schema(text: str) -> bool:
    """Whether an answer is JSON with the schema's keys."""
    try:
        parsed = json.loads(text)
    except ValueError:
        return False
    return isinstance(parsed, dict) and sorted(parsed) == sorted(SCHEMA["required"])
