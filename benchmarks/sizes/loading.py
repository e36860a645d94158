"""Time and memory of loading one model, and what this machine needs at least: reading the file, providing new memory.

    python -m benchmarks.sizes.loading FILE.gguf [--converted DIRECTORY] [--rounds 3]

Owns: the rounds and their table. Never does: write a model; `core convert` makes the directory. Called by: the command line.

A packed weight lies in memory that the system has to provide, which takes far longer than reading on a virtual machine whose
host provides memory on demand. The row "new memory" is the time for as many bytes as the file has, with as many threads as
there are processors; no program that copies the file can load it faster. Files lie in the page cache. Linux only.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.startup import with_bytecode

PIECE = 16 << 20
HUGE_PAGE = 2 << 20
PROMPT = [5, 6, 7, 8]
Figures = dict[str, float]


def read_seconds(path: Path) -> float:
    """Seconds to read a file into one buffer, a piece at a time."""
    buffer = bytearray(PIECE)
    begin = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return time.perf_counter() - begin


def new_memory_seconds(nbytes: int) -> float:
    """Seconds to write to `nbytes` of new memory in huge pages, with a thread for each processor."""
    memory = mmap.mmap(-1, -(-nbytes // PIECE) * PIECE + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    holder = ctypes.c_char.from_buffer(memory)
    first = -(-ctypes.addressof(holder) // HUGE_PAGE) * HUGE_PAGE
    begin = time.perf_counter()
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        # ctypes lets other threads run during a call.
        list(pool.map(lambda at: ctypes.memset(first + at, 1, PIECE), range(0, nbytes, PIECE)))
    seconds = time.perf_counter() - begin
    del holder
    memory.close()
    return seconds


def start_figures(model: Path, environment: dict[str, str]) -> Figures:
    """Start an engine in a process of its own; seconds of its phases, and its largest resident memory."""
    command = [sys.executable, "-m", "benchmarks.sizes.loading", "--child", str(model)]
    begin = time.time()
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if run.returncode:
        raise SystemExit(f"{model}: the engine ended with {run.returncode}: {run.stderr[-1000:]}")
    figures: Figures = json.loads(run.stdout.splitlines()[-1])
    figures["first token s"] -= begin
    return figures


def child(model: str) -> None:
    """Load a model, compute one token and print the figures of this process."""
    from core import LLM, SamplingParams

    llm = LLM(model=model, use_tqdm_on_load=False, max_model_len=512, max_num_seqs=1, kv_cache_memory_bytes=128 << 20)
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, detokenize=False)
    llm.generate([{"prompt_token_ids": PROMPT}], params, use_tqdm=False)
    ended = time.time()
    assert llm._client is not None
    phases = dict(llm._client.core.executor.phases)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    peak = int(status["VmHWM"].split()[0]) * 1024
    print(json.dumps({"load s": phases["load weights"], "first token s": ended, "peak bytes": peak}))
    llm.close()


def measure(file: Path, converted: Path | None, rounds: int) -> None:
    """Print a line of each round, and the medians with their ratios to reading."""
    models = {"file": (file, file)}
    if converted is not None:
        models["converted"] = (converted, converted / "prepared.weights")
    lines: dict[str, list[Figures]] = {name: [] for name in models}
    with tempfile.TemporaryDirectory(prefix="core-bytecode-") as folder:
        environment = os.environ | with_bytecode(Path(folder))
        for model, _ in models.values():
            start_figures(model, environment)  # writes bytecode, and reads libraries from the disk
        for _ in range(rounds):
            for name, (model, data) in models.items():
                read_seconds(data)
                figures = {"read s": read_seconds(data), "bytes": float(data.stat().st_size)}
                if name == "file":
                    figures["new memory s"] = new_memory_seconds(data.stat().st_size)
                lines[name].append(figures | start_figures(model, environment))
                print(name, {key: round(value, 2) for key, value in lines[name][-1].items()}, flush=True)
    for name, found in lines.items():
        middle = {key: statistics.median(one[key] for one in found) for key in found[0]}
        load = middle["load s"] / middle["read s"]
        peak = middle["peak bytes"] / middle["bytes"]
        print(f"{name}: loading {load:.2f} x reading, peak memory {peak:.2f} x the file", end="")
        print(f", {middle['load s'] / middle['new memory s']:.2f} x new memory" if "new memory s" in middle else "")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sizes.loading", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--converted", type=Path, help="directory that core convert made of the file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(str(options.file))
    else:
        measure(options.file, options.converted, options.rounds)


if __name__ == "__main__":
    main()
