"""S5, over HTTP: 64 streamed completions, 16 at a time, 128 tokens in, 128 out; for any OpenAI-compatible server.

Owns: a small load client on asyncio streams (client libraries cost more than the server on two cores), and the
percentiles. Called by: `benchmarks.run`; `python -m benchmarks.streaming --base http://127.0.0.1:8000`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import msgspec

from benchmarks.prompts import PromptMaker
from benchmarks.startup import ServerError

REQUESTS, CONCURRENCY, TOKENS_IN, TOKENS_OUT = 64, 16, 128, 128


class Usage(msgspec.Struct):
    completion_tokens: int


class Event(msgspec.Struct):
    """One streamed chunk; fields that do not matter here are skipped."""

    choices: list[msgspec.Raw] = []
    usage: Usage | None = None


@dataclass(slots=True)
class Stream:
    """One request's times, in seconds since its start."""

    arrivals: list[float] = field(default_factory=list)
    tokens: int = 0


EVENT = msgspec.json.Decoder(Event)


async def complete(
    base: str, model: str, prompt: Sequence[int], max_tokens: int, extra: Mapping[str, Any] | None = None
) -> Stream:
    """Stream one completion on a connection of its own. extra: more fields for the body. Raises ServerError."""
    body = {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **(extra or {}),
    }
    payload = json.dumps(body).encode()
    url = urlsplit(base)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(payload)}\r\nConnection: close\r\n\r\n"
    stream, start = Stream(), time.perf_counter()
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    try:
        writer.write(head.encode() + payload)
        status = (await reader.readline()).split()[1:2]
        if status != [b"200"]:
            answer = (await reader.read()).decode(errors="replace")
            raise ServerError(f"The server answered {status}: {answer[-400:]}")
        async for line in reader:
            if line.startswith(b"data: {"):
                event = EVENT.decode(line[6:])
                if event.choices:
                    stream.arrivals.append(time.perf_counter() - start)
                if event.usage is not None:
                    stream.tokens = event.usage.completion_tokens
    finally:
        writer.close()
    if stream.tokens != max_tokens or not stream.arrivals:
        raise ServerError(f"A stream ended after {stream.tokens} of {max_tokens} tokens: its times mean nothing.")
    return stream


async def load(
    base: str,
    model: str,
    prompts: Sequence[Sequence[int]],
    extra: Mapping[str, Any] | None = None,
    max_tokens: int = TOKENS_OUT,
) -> dict[str, float]:
    """All prompts, `CONCURRENCY` at a time, and their figures."""
    gate = asyncio.Semaphore(CONCURRENCY)

    async def one(prompt: Sequence[int]) -> Stream:
        async with gate:
            return await complete(base, model, prompt, max_tokens, extra)

    start = time.perf_counter()
    streams = await asyncio.gather(*(one(prompt) for prompt in prompts))
    seconds = time.perf_counter() - start
    first = [1e3 * stream.arrivals[0] for stream in streams]
    gaps = [1e3 * (b - a) for s in streams for a, b in zip(s.arrivals, s.arrivals[1:], strict=False)]
    return {
        "output tok/s": sum(stream.tokens for stream in streams) / seconds,
        "TTFT p50 ms": percentile(first, 50),
        "TTFT p99 ms": percentile(first, 99),
        "ITL p50 ms": percentile(gaps, 50),
        "ITL p99 ms": percentile(gaps, 99),
    }


def percentile(values: Sequence[float], percent: int) -> float:
    """The smallest value that at least `percent` percent of the values do not exceed; 0 for none."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)] if ordered else 0.0


def s5(base: str, model: str, prompts: PromptMaker, repeats: int = 3) -> dict[str, float]:
    """Medians of `repeats` runs after a warm-up."""
    rows = [asyncio.run(load(base, model, prompts.batch(REQUESTS, TOKENS_IN))) for _ in range(repeats + 1)][1:]
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streaming", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--base", default="http://127.0.0.1:8000")
    parser.add_argument("--model", help="served name; the server's first when left out")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with urllib.request.urlopen(options.base + "/v1/models", timeout=30) as answer:
        model = options.model or json.load(answer)["data"][0]["id"]

    def encode(text: str) -> list[int]:
        body = json.dumps({"model": model, "prompt": text, "add_special_tokens": False}).encode()
        request = urllib.request.Request(options.base + "/tokenize", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return list(json.load(answer)["tokens"])

    for name, value in s5(options.base, model, PromptMaker(encode), options.repeats).items():
        print(f"{name}: {value:.1f}")


if __name__ == "__main__":
    main()
