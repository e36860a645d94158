"""Ranks against threads: `python -m benchmarks.ranks --model PATH`.

Measures one stream's decode, one long prompt and eight streams at once, with one rank of N threads and N ranks of one
thread, in turns, each in a process of its own that sleeps meanwhile; then the sum of 4 KB over two ranks, and the processor
time of an idle rank. With `--stages`, the ranks have different layers, otherwise parts of every layer. With `--nodes`, also two
ranks that are two nodes on the loopback interface, encrypted.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

TOKENS = 64
PROMPT = 512
STREAMS = 8


DEALT = {"enable_expert_parallel": True, "expert_placement_strategy": "round_robin"}
MOVING = {
    "enable_expert_parallel": True,
    "enable_eplb": True,
    "eplb_config": {"window_size": 128, "step_interval": 128},
}


def serve(model: str, ranks: int, stages: int, threads: int, settings: dict[str, Any]) -> None:
    """Answer each line of the standard input with the seconds of a decode, of a prompt, and of a token of all streams."""
    from core import LLM, SamplingParams

    other = other_node(model, settings) if "nnodes" in settings else None
    llm = LLM(
        model=model, tensor_parallel_size=ranks, pipeline_parallel_size=stages, max_model_len=1024,
        kv_cache_memory_bytes="256M", max_num_seqs=STREAMS, platform_config={"threads": threads},
        use_tqdm_on_load=False, enable_prefix_caching=False, **settings,
    )  # fmt: skip
    long, short = [[5 + place * 7 % 900 for place in range(count)] for count in (PROMPT, 8)]

    def seconds(prompt: list[int], count: int, streams: int = 1) -> float:
        begin = time.perf_counter()
        params = SamplingParams(max_tokens=count, temperature=0, ignore_eos=True)
        llm.generate([[5 + stream, *prompt] for stream in range(streams)], params, use_tqdm=False)
        return time.perf_counter() - begin

    def ticks() -> int:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split()
        fields = [
            Path(f"/proc/{child}/stat").read_text(encoding="ascii").rpartition(")")[2].split() for child in children
        ]
        return sum(int(each[11]) + int(each[12]) for each in fields)

    seconds(long, 4)
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "idle":
            before = ticks()
            time.sleep(10)
            print(json.dumps((ticks() - before) / os.sysconf("SC_CLK_TCK") / 10), flush=True)
            continue
        one = seconds(short, 1)
        together = (seconds(short, TOKENS + 1, STREAMS) - seconds(short, 1, STREAMS)) / TOKENS
        print(json.dumps([(seconds(short, TOKENS + 1) - one) / TOKENS, seconds(long, 1), together]), flush=True)
    if other is not None:
        other.terminate()
        other.wait()


def other_node(model: str, settings: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start node 1 of two; settings: of both, to which a key and a port are added."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        settings["master_port"] = listener.getsockname()[1]
    descriptor, settings["engine_key_file"] = tempfile.mkstemp()
    os.write(descriptor, os.urandom(32).hex().encode())
    os.close(descriptor)
    words = ["--node-rank", "1", "--tensor-parallel-size", "2", "--max-model-len", "1024", "--no-enable-prefix-caching"]
    words += ["--kv-cache-memory-bytes", "256M", "--platform-config.threads", "1"]
    for name, value in settings.items():
        words += ["--" + name.replace("_", "-"), str(value)]
    return subprocess.Popen([sys.executable, "-m", "core", "serve", model, *words], stdout=subprocess.DEVNULL)


class Engine:
    """A process that measures on request."""

    def __init__(
        self, model: str, ranks: int, stages: int, threads: int, settings: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        numbers = map(str, (ranks, stages, threads))
        command = [sys.executable, "-m", "benchmarks.ranks", "--model", model, "--serve", *numbers]
        command += ["--settings", json.dumps(dict(settings))]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._read() == "ready"

    def ask(self, word: str = "run") -> Any:
        """Return what the process answers to a word."""
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        return json.loads(self._read())

    def _read(self) -> str:
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            if line.startswith(("ready", "[", "0", "1")):
                return line.strip()
        raise SystemExit("the engine ended")

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def sum_microseconds() -> float:
    """Return the median time of a sum of 4 KB over two processes."""
    from core_platforms.cpu.ranks import group_bytes

    memory = os.memfd_create("benchmark")
    os.ftruncate(memory, group_bytes(2, 1 << 20))
    command = [sys.executable, "-m", "benchmarks.ranks", "--sum", str(memory)]
    both = [subprocess.Popen([*command, str(rank)], pass_fds=(memory,), stdout=subprocess.PIPE) for rank in range(2)]
    said = [each.communicate()[0] for each in both]
    return float(said[0])


def sums(memory: int, rank: int) -> None:
    """Time sums as one of two ranks."""
    import torch

    from core_platforms.cpu.ranks import SharedCommunicator, SharedGroup

    group = SharedGroup(memory, rank, 2, 1 << 20)
    group.begin(1)
    communicator = SharedCommunicator(group)
    x = torch.zeros(1, 1024)
    times = []
    for _ in range(2000):
        begin = time.perf_counter()
        for _ in range(10):
            communicator.all_reduce(x)
        times.append((time.perf_counter() - begin) / 10)
    print(statistics.median(times) * 1e6)


def in_turns(engines: Mapping[str, Engine], turns: int) -> dict[str, list[list[float]]]:
    """Ask all engines in each turn, in changing order; returns the seconds of each, by engine."""
    found: dict[str, list[list[float]]] = {name: [] for name in engines}
    for turn in range(turns):
        for name in list(engines)[:: 1 if turn % 2 else -1]:
            found[name].append(engines[name].ask())
    return found


def report(found: Mapping[str, list[list[float]]]) -> None:
    """Print the medians, and how fast the other engines are beside threads."""
    for place, what in enumerate(("token of one stream", f"prompt of {PROMPT}", f"token of {STREAMS} streams")):
        threads = [turn[place] for turn in found["threads"]]
        print(f"{what}: threads {statistics.median(threads) * 1000:.2f} ms")
        for name in list(found)[1:]:
            others = [turn[place] for turn in found[name]]
            ratio = statistics.median(one / two for one, two in zip(threads, others, strict=True))
            print(f"    {name} {statistics.median(others) * 1000:.2f} ms, {ratio:.3f} as fast")


def main() -> None:
    """Measure, or be one of the measured processes."""
    parser = argparse.ArgumentParser(description="Ranks against threads")
    parser.add_argument("--model", default="")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--stages", action="store_true")
    parser.add_argument("--nodes", action="store_true", help="also measure two ranks on two nodes")
    parser.add_argument("--serve", nargs=3, type=int)
    parser.add_argument("--sum", nargs=2, type=int)
    parser.add_argument("--settings", default="{}", help="further arguments of the engine with --serve, as JSON")
    parser.add_argument(
        "--experts", action="store_true", help="also measure other places of experts than ranges of ids"
    )
    options = parser.parse_args()
    if options.serve:
        serve(options.model, *options.serve, json.loads(options.settings))
        return
    if options.sum:
        sums(*options.sum)
        return
    print(f"sum of 4 KB: {sum_microseconds():.2f} us")
    layout = (1, options.ranks) if options.stages else (options.ranks, 1)
    engines = {
        "threads": Engine(options.model, 1, 1, options.ranks),
        "ranks": Engine(options.model, *layout, options.ranks),
    }
    if options.experts:
        engines["experts dealt out"] = Engine(options.model, options.ranks, 1, options.ranks, DEALT)
        engines["experts that move"] = Engine(options.model, options.ranks, 1, options.ranks, MOVING)
    if options.nodes:
        engines["two nodes"] = Engine(options.model, 2, 1, 1, {"nnodes": 2})
    report(in_turns(engines, options.turns))
    print(f"idle rank: {engines['ranks'].ask('idle') / (options.ranks - 1):.2%} of a processor")
    for engine in engines.values():
        engine.close()


if __name__ == "__main__":
    main()
