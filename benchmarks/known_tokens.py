"""What the known tokens of a turn cost until its first token: processor milliseconds for 1,000 of them, by process.

Run: `python -m benchmarks.known_tokens`. One layer of random weights, so that nearly all that is measured is reading ids, keys
of blocks, and tables. A prompt of 4,000 tokens and one of 56,000 come again and again, each time with another last token; the
figures are what the longer one takes more, divided by its further tokens.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from benchmarks.agents.servers import healthy
from benchmarks.sizes.files import write_safetensors

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 40000,
    "max_position_embeddings": 65536,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LENGTHS = (4000, 56000)
START_S = 120.0
ROLES = {"core.engine.process": "engine", "prepare.process": "reader of requests"}
"""What a process is, by a word of its command; the server has none of these."""


@contextmanager
def served(model: Path, extra: Sequence[str]) -> Iterator[tuple[int, psutil.Process]]:
    """Start a server; yields its port and process, and ends it."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [sys.executable, "-P", "-m", "core", "serve", str(model), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--kv-cache-memory-bytes", "64M", "--max-num-seqs", "2", "--enable-prompt-tokens-details", *extra]
    path = {"PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    with open(model / "server.log", "wb") as log:
        process = psutil.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | path)
    try:
        end = time.monotonic() + START_S
        while not healthy(port):
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit((model / "server.log").read_text()[-2000:])
            time.sleep(0.2)
        yield port, process
    finally:
        process.terminate()
        process.wait(20)


def first_event(port: int, prompt: Sequence[int], ids: bool) -> tuple[float, int]:
    """Send a prompt; returns seconds until the first event, and the number of cached tokens. ids: the events have ids."""
    body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "stream": True, "return_token_ids": ids}
    data = json.dumps(body | {"stream_options": {"include_usage": True}})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    begin, first, cached = time.perf_counter(), 0.0, 0
    connection.request("POST", "/v1/completions", data, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        raise SystemExit(answer.read()[:300])
    for line in answer:
        first = first or time.perf_counter() - begin
        if line.startswith(b"data: {"):
            usage = json.loads(line[6:]).get("usage") or {}
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", cached)
    connection.close()
    return first, cached


def busy(server: psutil.Process) -> dict[str, float]:
    """Return the processor seconds of each kind of process so far."""
    found: dict[str, float] = {}
    for process in (server, *server.children(recursive=True)):
        command = " ".join(process.cmdline())
        role = next((role for word, role in ROLES.items() if word in command), "server")
        times = process.cpu_times()
        found[role] = found.get(role, 0.0) + times.user + times.system
    return found


def compare(port: int, server: psutil.Process, ids: bool, turns: int) -> None:
    """Print the figures of turns whose events have ids, or not."""
    draw = random.Random(0)
    tokens = [draw.randrange(300, 40000) for _ in range(max(LENGTHS))]
    spent: list[dict[str, float]] = []
    medians: list[float] = []
    for length in LENGTHS:
        prompt = tokens[:length]
        for last in range(3):
            first_event(port, [*prompt, 300 + last], ids)
        before = busy(server)
        rows = [first_event(port, [*prompt, 400 + last], ids) for last in range(turns)]
        after = busy(server)
        spent.append({role: (after[role] - before.get(role, 0.0)) / turns for role in after})
        medians.append(statistics.median(first for first, _ in rows))
        if min(cached for _, cached in rows) < length - 16:
            raise SystemExit(f"only {min(rows)} of {length} tokens were cached")
    thousands = (LENGTHS[1] - LENGTHS[0]) / 1000
    each = {role: 1e3 * (spent[1][role] - spent[0].get(role, 0.0)) / thousands for role in sorted(spent[1])}
    shown = ", ".join(f"{role} {ms:.3f}" for role, ms in each.items())
    clock = 1e3 * (medians[1] - medians[0]) / thousands
    told = "with ids" if ids else "without ids"
    print(f"{told}: processor ms for 1,000 known tokens: {shown}, together {sum(each.values()):.3f}; clock {clock:.3f}")


def main() -> None:
    """Read the arguments, start a server and measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.known_tokens", description=__doc__)
    parser.add_argument("--turns", type=int, default=40)
    given, extra = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="known-tokens-") as folder:
        model = Path(folder) / "model"
        write_safetensors(model, CONFIG)
        with served(model, extra) as (port, server):
            for ids in (True, False):
                compare(port, server, ids, given.turns)


if __name__ == "__main__":
    main()
