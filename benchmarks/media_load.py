"""What pictures cost those who send none: `python -m benchmarks.media_load`.

Owns: the rows `rest` and `beside` (`/health` and the first tokens of a client of text, while others send large JPEGs) and
`streams` (late tokens of eight answers beside pictures of 2,048 pixels a side). Never does: judge a figure. Called by: people.
Linux only.

The pictures are one file with other bytes behind its end, so that none is known. Their clients are threads of a process of its
own, beside the prober's. On a busy machine the processor seconds of the API process for each picture count, not the
clock.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from benchmarks.api_process import cpu_seconds
from benchmarks.media import file_of, picture, save_model
from benchmarks.peer.machine import describe
from benchmarks.startup import Server, core_server

PAUSE_S = 0.02
STREAMS = 8
ANSWER_S = 90.0
"""Seconds within which each answer must be there."""
SIDES = (3264, 2448)
"""Width and height of 8 megapixels."""


def post(base: str, path: str, body: bytes) -> tuple[int, float]:
    """Return an answer's status, and the milliseconds to its first byte."""
    address = urlsplit(base)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=ANSWER_S)
    begin = time.perf_counter()
    connection.request("POST" if body else "GET", path, body or None, {"content-type": "application/json"})
    answer = connection.getresponse()
    answer.read(1)
    took = 1000 * (time.perf_counter() - begin)
    answer.read()
    connection.close()
    return answer.status, took


def picture_body(model: str, file: bytes, number: int) -> bytes:
    """A chat about a picture that no other body has, whose answer is one token."""
    url = "data:image/jpeg;base64," + base64.b64encode(file + number.to_bytes(8, "little")).decode()
    content = [{"type": "text", "text": "what"}, {"type": "image_url", "image_url": {"url": url}}]
    return json.dumps({"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": content}]}).encode()


def send(base: str, model: str, clients: int, count: int, file: bytes, until: float) -> list[int]:
    """Have clients send pictures, each one after the other; return the statuses. Runs in a process of its own.

    until: time of the monotonic clock behind which no further one is sent.
    """

    def client(index: int) -> list[int]:
        statuses: list[int] = []
        for number in range(count):
            if statuses and time.monotonic() > until:
                break
            body = picture_body(model, file, 1 + index * count + number)
            statuses.append(post(base, "/v1/chat/completions", body)[0])
        return statuses

    with ThreadPoolExecutor(clients) as pool:
        return [status for statuses in pool.map(client, range(clients)) for status in statuses]


def probe(work: Callable[[], float], until: Callable[[], bool], least: int) -> list[float]:
    """Return milliseconds of repeated requests, until enough time has passed, and at least so many."""
    found: list[float] = []
    while not until() or len(found) < least:
        found.append(work())
        time.sleep(PAUSE_S)
    return found


def text_body(model: str, number: int) -> bytes:
    """A streamed answer to a prompt of text that no other begins like."""
    prompt = f"{number:06d} what is this " + "x" * 200
    return json.dumps({"model": model, "prompt": prompt, "max_tokens": 2, "stream": True}).encode()


def measure(server: Server, until: Callable[[], bool], least: int) -> dict[str, float]:
    """Return percentiles of `/health` and of first tokens of text, until `until`."""
    numbers = iter(range(int(time.monotonic() * 1000) % 900_000, 10_000_000))
    health: list[float] = []
    prober = threading.Thread(
        target=lambda: health.extend(probe(lambda: post(server.base, "/health", b"")[1], until, least))
    )
    prober.start()
    first = probe(
        lambda: post(server.base, "/v1/completions", text_body(server.model, next(numbers)))[1],
        until,
        max(least // 4, 1),
    )
    prober.join()
    return {
        "health p50 ms": statistics.median(health), "health p99 ms": float(np.percentile(health, 99)),
        "health probes": len(health), "text TTFT p50 ms": statistics.median(first), "text probes": len(first),
    }  # fmt: skip


def longest_gap(base: str, model: str, tokens: int, streams: int) -> float:
    """Return the longest milliseconds between two chunks of streamed answers. Runs in a process of its own."""

    def stream(index: int) -> float:
        body = {"model": model, "prompt": f"{index} tell", "max_tokens": tokens, "stream": True, "ignore_eos": True}
        address = urlsplit(base)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=ANSWER_S)
        connection.request("POST", "/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})
        answer = connection.getresponse()
        longest, last = 0.0, 0.0
        while line := answer.readline():
            if line.startswith(b"data: {"):
                now = time.perf_counter()
                longest, last = max(longest, now - last if last else 0.0), now
        connection.close()
        return 1000 * longest

    with ThreadPoolExecutor(streams) as pool:
        return max(pool.map(stream, range(streams)))


def stalled(server: Server) -> float:
    """Tokens that came later than `--max-stall-ms`, as the engine counts them."""
    with urllib.request.urlopen(f"{server.base}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("core:stalled_tokens_total"))


def streams(server: Server, sender: ProcessPoolExecutor, tokens: int) -> dict[str, float]:
    """Return the late tokens of eight streams alone and beside pictures, one client of which sends them all the time."""
    file = file_of(picture(1, 2048, 2048))
    found: dict[str, float] = {}
    for name, clients in (("alone", 0), ("beside", 1)):
        late, sent = stalled(server), 0
        job = sender.submit(longest_gap, server.base, server.model, tokens, STREAMS)
        while not job.done():
            if clients:
                post(server.base, "/v1/chat/completions", picture_body(server.model, file, 1_000_000 + sent))
                sent += 1
            else:
                time.sleep(PAUSE_S)
        found |= {f"late tokens {name}": stalled(server) - late, f"longest gap ms {name}": job.result()}
    return found | {"pictures": float(sent), "tokens": float(STREAMS * tokens)}


def main() -> None:
    """Serve, measure at rest and under load, and print a line of JSON for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--pictures", type=int, default=4, help="of each client")
    parser.add_argument("--sides", type=int, nargs=2, default=SIDES, help="width and height of a picture")
    parser.add_argument("--layers", type=int, default=1, help="of the tower and the text model")
    parser.add_argument("--tokens", type=int, default=256, help="of each stream")
    parser.add_argument("--seconds", type=float, default=90.0, help="behind which clients send no further pictures")
    parser.add_argument("--rest", type=float, default=5.0, help="seconds at rest")
    arguments = parser.parse_args()
    sides = (arguments.sides[0], arguments.sides[1])
    print(json.dumps({"machine": describe(), "clients": arguments.clients, "sides": sides, "layers": arguments.layers}))
    with tempfile.TemporaryDirectory(prefix="core-bench-") as folder:
        save_model(Path(folder), arguments.layers)
        with core_server(
            folder, ["--max-model-len", "2048", "--max-stall-ms", "50", "--max-body-size", str(128 << 20)]
        ) as server:
            file = file_of(picture(0, *sides))
            chat = "/v1/chat/completions"
            post(server.base, chat, picture_body(server.model, file, 0))  # the processes have started
            begin, before = time.monotonic(), cpu_seconds(server.pid)
            rest = measure(server, lambda: time.monotonic() - begin > arguments.rest, 100)
            idle = (cpu_seconds(server.pid) - before) / (time.monotonic() - begin)
            print(json.dumps({"row": "rest"} | {name: round(value, 3) for name, value in rest.items()}), flush=True)
            with ProcessPoolExecutor(1, get_context("spawn")) as sender:
                sender.submit(post, server.base, "/health", b"").result()  # the process has imported what it needs
                begin, before = time.monotonic(), cpu_seconds(server.pid)
                until = begin + arguments.seconds
                job = sender.submit(send, server.base, server.model, arguments.clients, arguments.pictures, file, until)
                busy = measure(server, job.done, 1)
                statuses = job.result()
                used = cpu_seconds(server.pid) - before - idle * (time.monotonic() - begin)
                late = streams(server, sender, arguments.tokens)
            busy |= {
                "pictures": float(len(statuses)), "refused": float(sum(status != 200 for status in statuses)),
                "API processor ms a picture": 1000 * used / len(statuses), "body MiB": len(file) * 4 / 3 / 2**20,
                "TTFT beside / alone": busy["text TTFT p50 ms"] / rest["text TTFT p50 ms"],
            }  # fmt: skip
            for row, figures in (("beside", busy), ("streams", late)):
                print(json.dumps({"row": row} | {name: round(value, 3) for name, value in figures.items()}), flush=True)


if __name__ == "__main__":
    main()
