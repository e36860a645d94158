"""Runs one engine on one model: starts it, runs the rows, and reads time and memory.

Owns: the command lines, with the arguments that each project recommends for a processor. Never does: compare, or keep
figures. Called by: the command.

`core`, vLLM are asked through their workers: each prompt is new at first and found in the cache when it comes again, so
decoding is timed without a second prefill. llama.cpp and ik_llama.cpp run as their own `llama-batched-bench`, a process a row.
Every engine runs a row's streams once with shorter prompts before it is timed: the first step of a shape writes to memory
that the system has yet to provide.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peer.environment import Environments, PeerError
from benchmarks.peer.process import Launch, Worker
from benchmarks.sizes.rows import Row
from benchmarks.startup import process_tree

ROOT = Path(__file__).resolve().parents[2]
WORKERS = ROOT / "benchmarks" / "peer" / "workers"
START_LIMIT_S = 600.0
ROW_LIMIT_S = 1200.0
TABLE = re.compile(
    r"\|\s*(\d+) \|\s*(\d+) \|\s*(\d+) \|\s*\d+ \|\s*([\d.]+) \|\s*([\d.]+) \|\s*([\d.]+) \|\s*([\d.]+) \|"
)
LOAD = re.compile(r"load time =\s*([\d.]+) ms")

Figures = dict[str, float]
Outcome = tuple[Row, Figures | str]
"""A row with its figures, or with the reason why there are none."""


@dataclass(frozen=True, slots=True)
class Case:
    """A model's file in the form that an engine reads. config: with the layers that the file has."""

    name: str
    path: Path
    config: dict[str, Any]

    def cache_bytes(self, rows: list[Row]) -> int:
        """Bytes of a bfloat16 cache for the largest row, with an eighth more for partly filled blocks."""
        c = self.config
        token = 4 * c["num_hidden_layers"] * c["num_key_value_heads"] * c.get("head_dim", 256)
        return max(row.tokens for row in rows) * token * 9 // 8 + (64 << 20)


def run_core(case: Case, rows: list[Row], seed: int, arguments: dict[str, Any]) -> Iterator[Outcome]:
    """This checkout, in process. Yields each row as soon as it is done."""
    limits = {
        "max_model_len": max(row.prompt + row.out + 1 for row in rows),
        "max_num_seqs": max(row.streams for row in rows),
        "kv_cache_memory_bytes": case.cache_bytes(rows),
    }
    options = {"model": str(case.path), "arguments": limits | arguments}
    environment = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": str(ROOT)}
    launch = Launch([sys.executable, str(WORKERS / "core_worker.py"), json.dumps(options)], environment)
    # A start that does not count: without it a start after a while would read torch from the disk (7 s in place of 2.5).
    for _ in _ask(launch, case, [], seed):
        pass
    yield from _ask(launch, case, rows, seed)


def run_vllm(case: Case, rows: list[Row], seed: int, environments: Environments) -> Iterator[Outcome]:
    """vLLM on all processors, with the OpenMP library that its manual wants preloaded."""
    python = environments.python("vllm")
    libraries = environments.optional_files("vllm", ["lib/libiomp5.so"])
    processors = sorted(os.sched_getaffinity(0))
    options = {
        "model": str(case.path),
        "arguments": {
            "max_model_len": max(row.prompt + row.out + 1 for row in rows),
            "max_num_seqs": max(row.streams for row in rows),
            "skip_tokenizer_init": True,
        },
    }
    environment = {
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, processors)),
        "VLLM_CPU_KVCACHE_SPACE": str(-(-case.cache_bytes(rows) // 2**30)),
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": str(len(processors)),
        "HF_HUB_OFFLINE": "1",
        "LD_PRELOAD": ":".join(map(str, libraries)),
    }
    yield from _ask(
        Launch([str(python), str(WORKERS / "vllm_worker.py"), json.dumps(options)], environment), case, rows, seed
    )


def run_openvino(case: Case, rows: list[Row], seed: int, environments: Environments) -> Iterator[Outcome]:
    """OpenVINO GenAI's continuous batching, in int4; the first time, `optimum-cli` converts the bfloat16 directory."""
    converted = case.path.with_name(f"{case.path.name}-openvino-int4")
    if not (converted / "openvino_model.xml").exists():
        program = environments.python("openvino-convert").with_name("optimum-cli")
        words = ["--task", "text-generation-with-past", "--weight-format", "int4", "--disable-convert-tokenizer"]
        text, _, code = _run([str(program), "export", "openvino", "--model", str(case.path), *words, str(converted)])
        if code:
            raise PeerError(f"optimum-cli ended with {code}: {text.strip()[-300:]}")
    options = {
        "model": str(converted),
        "cache_gib": -(-case.cache_bytes(rows) // 2**30),
        "max_num_seqs": max(row.streams for row in rows),
    }
    python = environments.python("openvino")
    launch = Launch([str(python), str(WORKERS / "openvino_worker.py"), json.dumps(options)], {"HF_HUB_OFFLINE": "1"})
    yield from _ask(launch, case, rows, seed)


def run_mistralrs(case: Case, rows: list[Row], seed: int, environments: Environments) -> Iterator[Outcome]:
    """mistral.rs through its Python package, on the GGUF file."""
    options = {"model": str(case.path), "max_num_seqs": max(row.streams for row in rows)}
    python = environments.python("mistralrs")
    launch = Launch([str(python), str(WORKERS / "mistralrs_worker.py"), json.dumps(options)], {"HF_HUB_OFFLINE": "1"})
    yield from _ask(launch, case, rows, seed)


def _ask(launch: Launch, case: Case, rows: list[Row], seed: int) -> Iterator[Outcome]:
    log = Path(os.environ.get("TMPDIR", "/tmp")) / f"sizes-{os.getpid()}.log"
    start = time.perf_counter()
    worker = Worker(launch, log, START_LIMIT_S)
    try:
        worker.ask({"do": "generate", "prompts": [[1, 2, 3]], "max_tokens": 1}, ROW_LIMIT_S)
        started = time.perf_counter() - start
        for row in rows:
            try:
                _times(worker, row.warm_up(), case.config["vocab_size"], seed)
                figures = _times(worker, row, case.config["vocab_size"], seed)
            except PeerError as error:
                yield row, str(error)
                return
            yield row, figures | {"start s": started, "peak MB": peak_megabytes(worker.pid)}
    finally:
        worker.stop()
        log.unlink(missing_ok=True)


def _times(worker: Worker, row: Row, vocabulary: int, seed: int) -> Figures:
    """New prompts with one token, then the same ones from the cache: with one token, and with all."""
    prompts = row.prompts(vocabulary, seed)

    def seconds(tokens: int) -> float:
        answer = worker.ask({"do": "generate", "prompts": prompts, "max_tokens": tokens}, ROW_LIMIT_S)
        if any(len(output) != tokens for output in answer["result"]):
            raise PeerError(f"an output has not {tokens} tokens")
        return float(answer["seconds"])

    first = seconds(1)
    again, whole = seconds(1), seconds(row.out + 1)
    return {
        "prefill tok/s": row.streams * row.prompt / first,
        "decode tok/s": row.streams * row.out / max(whole - again, 1e-9),
    }


def run_llama(peer: str, program: Path, case: Case, rows: list[Row], *, small_cache: bool) -> Iterator[Outcome]:
    """llama.cpp or ik_llama.cpp, with a cache of float16 or q8_0. Their prompts are random tokens too."""
    if not program.exists():
        raise PeerError(f"{program} is missing")
    threads = str(len(os.sched_getaffinity(0)))
    words = ["-fa", "on"] if peer == "llama.cpp" else ["-rtr"]
    if peer == "ik_llama.cpp" and "kv_lora_rank" in case.config:
        words += ["-mla", "3"]
    if small_cache:
        words += ["-ctk", "q8_0", "-ctv", "q8_0"]
    for row in rows:
        sizes = ["-npp", f"{row.warm_up().prompt},{row.prompt}", "-ntg", str(row.out), "-npl", str(row.streams)]
        context = ["-c", str(row.tokens + 256), "-t", threads, "-tb", threads]
        # Its flash attention on processors ends the process at several sequences: GGML_ASSERT(S > 0), iqk_fa_templates.h.
        if peer == "ik_llama.cpp" and row.streams > 1:
            context.append("-no-fa")
        text, megabytes, code = _run([str(program), "-m", str(case.path.resolve()), *context, *words, *sizes])
        found = TABLE.findall(text)
        if len(found) < 2:  # the row of warming up, and the one that counts
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            yield row, f"ended with {code}: {' / '.join(lines[-3:])[-300:]}"
            continue
        *_, prefill, _, decode = found[-1]
        figures = {"prefill tok/s": float(prefill), "decode tok/s": float(decode), "peak MB": megabytes}
        load = LOAD.search(text)
        if load is not None:
            figures["start s"] = float(load[1]) / 1e3
        yield row, figures


def read_file(path: Path) -> None:
    """Have the system keep a model's files in memory, as far as it does."""
    for file in path.glob("*") if path.is_dir() else [path]:
        with open(file, "rb", buffering=0) as opened:
            while opened.read(1 << 24):
                pass


def _run(command: list[str]) -> tuple[str, float, int]:
    """What a program printed, its peak resident size in MB, its exit code."""
    where = tempfile.gettempdir()  # llama.cpp leaves a llama.log where it runs
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(command, **pipe, cwd=where, text=True, errors="replace")
    assert process.stdout is not None
    text = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdout.close()
    return text, usage.ru_maxrss * 1024 / 1e6, process.returncode


def peak_megabytes(pid: int) -> float:
    """Peak resident sizes of a process and its children, in MB. Pages of a mapped file count where they were read."""
    total = 0.0
    for one in process_tree(pid):
        with suppress(OSError):
            status = Path(f"/proc/{one}/status").read_text()
            found = re.search(r"VmHWM:\s*(\d+) kB", status)
            total += int(found[1]) * 1024 / 1e6 if found else 0.0
    return total
