"""What a batch costs the chats beside it: Poisson chats at half of what the server takes, alone and beside a batch.

    python -m benchmarks.batch_class [--chats 60] [--rate 1.5] [MODEL ARGS]

One server; each way runs twice, in the order ABBA. Prints medians and 99th percentiles of the times to first tokens and between
further ones, the share of waits over the limit, and the tokens a second of the batch.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx

LIMIT_S = 0.05


@dataclass
class Seen:
    """Seconds of one way: to first tokens, and between tokens; and the tokens of the batch meanwhile."""

    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    seconds: float = 0.0
    chat_tokens: int = 0
    batch_tokens: float = 0.0


async def chat(client: httpx.AsyncClient, number: int, seen: Seen) -> None:
    words = " ".join(f"word{random.Random(number * 100 + place).randrange(999)}" for place in range(60))
    body = {"prompt": words, "max_tokens": 40, "stream": True, "ignore_eos": True, "temperature": 0}
    last = begin = time.perf_counter()
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            now = time.perf_counter()
            (seen.first if last == begin else seen.between).append(now - last)
            seen.chat_tokens += 1
            last = now


async def chats(client: httpx.AsyncClient, count: int, rate: float, seed: int, seen: Seen) -> None:
    draw = random.Random(seed)
    begin = time.perf_counter()
    tasks = []
    for number in range(count):
        await asyncio.sleep(draw.expovariate(rate))
        tasks.append(asyncio.ensure_future(chat(client, seed * 1000 + number, seen)))
    await asyncio.gather(*tasks)
    seen.seconds += time.perf_counter() - begin


async def begin_batch(client: httpx.AsyncClient, count: int) -> str:
    rows = []
    for number in range(count):
        body = {
            "prompt": f"Line {number}: once upon a time there was",
            "max_tokens": 64,
            "ignore_eos": True,
            "seed": number,
        }
        rows.append(json.dumps({"custom_id": f"r{number}", "url": "/v1/completions", "body": body}))
    files = {"file": ("in.jsonl", "\n".join(rows).encode())}
    file = (await client.post("/v1/files", data={"purpose": "batch"}, files=files)).json()["id"]
    body: dict[str, Any] = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "1h"}
    return str((await client.post("/v1/batches", json=body)).json()["id"])


async def generated(client: httpx.AsyncClient) -> float:
    text = (await client.get("/metrics")).text
    return float(
        next(row for row in text.splitlines() if row.startswith("core:generation_tokens_total{")).rsplit(" ", 1)[1]
    )


def late_one(waits: list[float]) -> float:
    """Return the 99th percentile of sorted waits."""
    return waits[int(0.99 * len(waits))]


async def measure(url: str, count: int, rate: float) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        await chats(client, 4, 2.0, 9, Seen())  # warm
        ways = {"alone": Seen(), "beside a batch": Seen()}
        for turn, name in enumerate(("alone", "beside a batch", "beside a batch", "alone")):
            seen = ways[name]
            batch = await begin_batch(client, 10_000) if name != "alone" else ""
            if batch:
                await asyncio.sleep(4.0)
            before, told = await generated(client), seen.chat_tokens
            await chats(client, count, rate, turn, seen)
            seen.batch_tokens += await generated(client) - before - (seen.chat_tokens - told)
            if batch:
                await client.post(f"/v1/batches/{batch}/cancel")
                while (await client.get(f"/v1/batches/{batch}")).json()["status"] not in ("cancelled", "completed"):
                    await asyncio.sleep(0.1)
        # What the batch gets without chats.
        batch = await begin_batch(client, 10_000)
        await asyncio.sleep(4.0)
        before = await generated(client)
        await asyncio.sleep(8.0)
        alone = (await generated(client) - before) / 8.0
        await client.post(f"/v1/batches/{batch}/cancel")
    for name, seen in ways.items():
        seen.first.sort()
        seen.between.sort()
        late = sum(wait > 2 * LIMIT_S for wait in seen.between) / len(seen.between)
        print(
            f"{name}: first token p50 {1e3 * median(seen.first):.0f} ms, p99 {1e3 * late_one(seen.first):.0f}; "
            f"between p50 {1e3 * median(seen.between):.1f} ms, p99 {1e3 * late_one(seen.between):.1f}; "
            f"over {2e3 * LIMIT_S:.0f} ms {100 * late:.2f}%; chats {seen.chat_tokens / seen.seconds:.0f} tokens/s, "
            f"batch {seen.batch_tokens / seen.seconds:.0f} tokens/s"
        )
    print(f"the batch without chats: {alone:.0f} tokens/s")


def main() -> None:
    """Start a server, measure, and end it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--chats", type=int, default=24)
    parser.add_argument("--rate", type=float, default=2.0)
    options, rest = parser.parse_known_args()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "core", "serve", *rest, "--port", str(port), "--batch-directory", directory]
        with Path(directory, "log").open("wb") as log:
            server = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            url = f"http://127.0.0.1:{port}"
            for _ in range(600):
                try:
                    if httpx.get(f"{url}/health").status_code == 200:
                        break
                except httpx.HTTPError:
                    if server.poll() is not None:
                        raise SystemExit(f"The server ended: {Path(directory, 'log').read_text()[-2000:]}") from None
                    time.sleep(0.1)
            asyncio.run(measure(url, options.chats, options.rate))
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
