"""What prefill apart from decoding costs: `python -m benchmarks.kv_handoffs`.

Owns: a server that computes prompts and one that answers them, on this machine, with each way between them (`tcp` with roles
and leases, `shm`). Printed for each: the time to the first token of a prompt that the second server computes alone, of one
that the first computes and the second takes over, and of one whose blocks the first has computed before; and how much streams
of the second server lose beside transfers under a rate limit. Never does: compare with another engine.

Both servers run with one thread, so that neither waits for the other's.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx

READY_S = 120.0
ASKED = {"do_remote_decode": True}
STREAMS, WINDOW_S = 4, 6.0


class Server:
    """A server of the embedded model, or of `model`."""

    def __init__(self, port: int, model: str | None, *own: str) -> None:
        limits = ["--max-model-len", "8192", "--platform-config.threads", "1", "--kv-cache-memory-bytes", "700M"]
        place = ["--port", str(port), "--host", "127.0.0.1"]
        command = [sys.executable, "-m", "core", "serve", *([model] if model else []), *place, *limits, *own]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120)
        self._model = ""

    def until_ready(self) -> None:
        """Wait until it serves."""
        deadline = time.monotonic() + READY_S
        while not self._is_ready():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise SystemExit("A server does not start.")
            time.sleep(0.1)
        self._model = self._http.get("/v1/models").json()["data"][0]["id"]

    def first_token(self, prompt: list[int], **more: Any) -> dict[str, Any]:
        """Answer a prompt with one token."""
        body = {"model": self._model, "prompt": prompt, "max_tokens": 1, "temperature": 0, **more}
        answer = self._http.post("/v1/completions", json=body).raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    def stream(self, prompt: list[int], ends: threading.Event, count: Callable[[], None]) -> None:
        """Read a stream until `ends`; calls `count` for each token."""
        body = {"model": self._model, "prompt": prompt, "max_tokens": 7000, "ignore_eos": True, "stream": True}
        with self._http.stream("POST", "/v1/completions", json=body) as lines:
            for line in lines.iter_lines():
                if ends.is_set():
                    return
                if line.startswith("data: {"):
                    count()

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait()

    def _is_ready(self) -> bool:
        try:
            return self._http.get("/ready").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False


def arguments_of(way: str, port: int, rate: int) -> tuple[list[str], list[str]]:
    """Return the arguments of both servers. rate: limit in bytes a second; 0: none."""
    if way == "shm":
        own = ["--kv-connectors", "shm"]
        return own, own
    flag, limit = "--kv-transfer-config.", ["--kv-rate-limit", str(rate)] if rate else []
    producer = [f"{flag}kv_connector", "tcp", f"{flag}kv_role", "kv_producer", f"{flag}kv_port", str(port)]
    consumer = [f"{flag}kv_connector", "tcp", f"{flag}kv_role", "kv_consumer", "--kv-peers", f"127.0.0.1:{port}"]
    return [*producer, *limit], [*consumer, *limit]


def handed(first: Server, second: Server, prompt: list[int], way: str) -> None:
    """Have the first server compute a prompt, and the second answer it."""
    more = {} if way == "shm" else {"kv_transfer_params": ASKED}
    params = first.first_token(prompt, **more).get("kv_transfer_params")
    if way == "tcp" and params is None:
        raise SystemExit("A prompt was answered without a ticket.")
    second.first_token(prompt, **({} if way == "shm" else {"kv_transfer_params": params}))


def timed(work: Callable[[], Any]) -> float:
    """Return the milliseconds of a call."""
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) * 1e3


def first_tokens(first: Server, second: Server, way: str, tokens: int, turns: int) -> dict[str, float]:
    """Return the medians of the times to the first token, in milliseconds."""
    times: dict[str, list[float]] = {"alone": [], "handed over": [], "computed before": []}
    for turn in range(turns + 1):
        drawn = random.Random(1000 * tokens + turn)
        one, other, known = ([drawn.randrange(300, 30_000) for _ in range(tokens)] for _ in range(3))
        more = {} if way == "shm" else {"kv_transfer_params": ASKED}
        params = first.first_token(known, **more).get("kv_transfer_params")
        time.sleep(1.0)  # `shm` writes its pages when the engine has nothing else to do
        taken = {} if way == "shm" else {"kv_transfer_params": params}
        ways: list[tuple[str, Callable[[], Any]]] = [
            ("alone", lambda one=one: second.first_token(one)),
            ("handed over", lambda other=other: handed(first, second, other, way)),
            ("computed before", lambda known=known, taken=taken: second.first_token(known, **taken)),
        ]
        for name, work in ways if turn % 2 else reversed(ways):
            value = timed(work)
            if turn:  # the first one warms up
                times[name].append(value)
    return {name: round(statistics.median(values), 1) for name, values in times.items()}


def streams_beside(first: Server, second: Server, tokens: int, rounds: int) -> dict[str, Any]:
    """Return tokens a second of streams without transfers and beside them, in turns."""
    counts, ends = [0], threading.Event()

    def count() -> None:
        counts[0] += 1

    drawn = random.Random(7)
    prompts = [[drawn.randrange(300, 30_000) for _ in range(16)] for _ in range(STREAMS)]
    threads = [threading.Thread(target=second.stream, args=(prompt, ends, count)) for prompt in prompts]
    for thread in threads:
        thread.start()
    time.sleep(2.0)
    rates: dict[str, list[float]] = {"beside": [], "without": []}
    num_moved = 0
    for _ in range(rounds):
        tickets = []
        for _ in range(6):
            prompt = [drawn.randrange(300, 30_000) for _ in range(tokens)]
            tickets.append((prompt, first.first_token(prompt, kv_transfer_params=ASKED)["kv_transfer_params"]))
        for name, values in rates.items():
            before, begin = counts[0], time.perf_counter()
            while time.perf_counter() < begin + WINDOW_S:
                if name == "beside" and tickets:
                    prompt, params = tickets.pop()
                    second.first_token(prompt, kv_transfer_params=params)
                    num_moved += 1
                else:
                    time.sleep(0.05)
            values.append((counts[0] - before) / (time.perf_counter() - begin))
    ends.set()
    for thread in threads:
        thread.join()
    found = {name: round(statistics.median(values), 1) for name, values in rates.items()}
    loss = 1 - sum(rates["beside"]) / sum(rates["without"])
    return {"tokens a second": found, "loss": round(loss, 3), "transfers": num_moved}


def main() -> None:
    """Measure and print medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="default: the embedded model")
    parser.add_argument("--ways", nargs="+", choices=("tcp", "shm"), default=["tcp", "shm"])
    parser.add_argument("--tokens", type=int, nargs="*", default=[2048, 8000])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rate", type=int, default=50_000_000, help="bytes a second beside streams; 0: leave them out")
    parser.add_argument("--port", type=int, default=8351)
    options = parser.parse_args()
    runs = [(way, 0) for way in options.ways] + ([("tcp", options.rate)] if options.rate else [])
    for number, (way, rate) in enumerate(runs):
        port = options.port + 3 * number
        own = arguments_of(way, port + 2, rate)
        servers = [Server(port + index, options.model, *own[index]) for index in range(2)]
        try:
            for server in servers:
                server.until_ready()
            first, second = servers
            if rate:
                found: dict[str, Any] = streams_beside(first, second, 1024, 2) | {"rate limit": rate}
            else:
                few = max(options.turns // 2, 1)
                sizes = [(size, options.turns if size < 4000 else few) for size in options.tokens]
                if way == "shm":
                    sizes = sizes[:1]  # what longer prompts gain is the same for each way
                found = {str(size): first_tokens(first, second, way, size, turns) for size, turns in sizes}
        finally:
            for server in servers:
                server.close()
        print(json.dumps({"way": way, **found}), flush=True)


if __name__ == "__main__":
    main()
