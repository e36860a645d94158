"""Servers of S9: command lines, start, and their end by `kill -9`.

Owns: processes. Never does: send a turn. Called by: the command, the scenarios.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.agents.models import path_of
from benchmarks.peer.environment import PeerError
from benchmarks.peer.process import Launch, last_words
from benchmarks.startup import process_tree

ROOT = Path(__file__).resolve().parents[2]
START_LIMIT_S = 240.0
CONTEXT, STREAMS = 65536, 8
PEERS = ("vllm", "llama.cpp", "ik_llama.cpp")
CHECKPOINTS = ["--checkpoint-min-step", "64", "--ctx-checkpoints", "64"]
"""llama.cpp at its best for states and windows: copies of them at short distances, and room for many."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where files lie. programs: {peer: its llama-server}."""

    models: Path
    environments: Path
    programs: dict[str, Path]
    kv_bytes: int


def launch_of(engine: str, model: str, place: Place, port: int, extra: tuple[str, ...] = ()) -> Launch:
    """Return the command of an engine's server. Raises PeerError where it cannot be run."""
    where = ["--host", "127.0.0.1", "--port", str(port)]
    limits = ["--max-model-len", str(CONTEXT), "--max-num-seqs", str(STREAMS), "--served-model-name", "agents"]
    if engine == "core":
        command = [sys.executable, "-P", "-m", "core", "serve", str(path_of(model, "bf16", place.models)), *where]
        limits += ["--kv-cache-memory-bytes", str(place.kv_bytes), "--enable-prompt-tokens-details"]
        return Launch([*command, *limits, *extra], {"PYTHONPATH": str(ROOT)})
    if engine == "vllm":
        python = place.environments / "vllm" / "bin" / "python"
        if not python.exists():
            raise PeerError(f"{python} is missing")
        command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--skip-tokenizer-init"]
        command += ["--model", str(path_of(model, "bf16", place.models)), "--enable-prompt-tokens-details"]
        command += ["--enable-prefix-caching"] + (["--mamba-cache-mode", "align"] if model == "gdn" else [])
        return Launch([*command, *where, *limits], vllm_environment(place))
    program = place.programs.get(engine)
    if program is None or not program.exists():
        raise PeerError(f"it has no llama-server here; name one with --program {engine}=PATH")
    threads = str(len(os.sched_getaffinity(0)))
    command = [str(program), "-m", str(path_of(model, "gguf", place.models)), "-t", threads, "-tb", threads, *where]
    sizes = ["-np", str(STREAMS), "-c", str(CONTEXT), "--kv-unified", *CHECKPOINTS]
    return Launch([*command, *sizes])


def vllm_environment(place: Place) -> dict[str, str]:
    """Both cores, as much cache as ours has, and the OpenMP library that its manual wants preloaded."""
    processors = sorted(os.sched_getaffinity(0))
    return {
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, processors)),
        "VLLM_CPU_KVCACHE_SPACE": str(-(-place.kv_bytes // 2**30)),
        "VLLM_CACHE_ROOT": str(place.models / "vllm-cache"),
        "TORCHINDUCTOR_CACHE_DIR": str(place.models / "vllm-cache" / "inductor"),
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": str(len(processors)),
        "HF_HUB_OFFLINE": "1",
        "LD_PRELOAD": str(place.environments / "vllm" / "lib" / "libiomp5.so"),
    }


@dataclass(slots=True)
class Server:
    """A running server. native: it takes requests in llama.cpp's form."""

    process: subprocess.Popen[bytes]
    port: int
    native: bool
    start_seconds: float = field(default=0.0)

    def kill(self) -> None:
        """Kill all its processes with SIGKILL."""
        for pid in process_tree(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def kill_engine(self) -> None:
        """Kill the engine of our server, and leave the server."""
        for pid in process_tree(self.process.pid):
            if b"core.engine.process" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
                return
        raise PeerError("its engine's process was not found")


@contextlib.contextmanager
def serve(engine: str, model: str, place: Place, extra: tuple[str, ...] = ()) -> Iterator[Server]:
    """Start a server and kill it in the end. Raises PeerError where it does not start."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    launch = launch_of(engine, model, place, port, extra)
    log = place.models / f"agents-{engine}.log"
    begin = time.perf_counter()
    with open(log, "wb") as stream:
        process = subprocess.Popen(
            launch.command,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=os.environ | launch.environment,
            start_new_session=True,
        )
    server = Server(process, port, "llama" in engine)
    try:
        while not healthy(port):
            if process.poll() is not None:
                raise PeerError(f"ended with {process.returncode}: {last_words(log)}")
            if time.perf_counter() - begin > START_LIMIT_S:
                raise PeerError(f"did not start within {START_LIMIT_S:g} s")
            time.sleep(0.1)
        server.start_seconds = time.perf_counter() - begin
        yield server
    finally:
        server.kill()


def healthy(port: int) -> bool:
    """Whether a server answers `/health` with 200."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
