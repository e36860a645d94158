"""Memory of a server: the peak of all its processes, and how much of it is KV cache.

Owns: the watching thread, and what each engine says about its cache. Called by: the session. Linux only.
"""

from __future__ import annotations

import re
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.peer.contenders import KV_GIB, SERVER_KV_BYTES
from benchmarks.peer.environment import PeerError
from benchmarks.startup import Server

INTERVAL_S = 0.5
LLAMA_SLOTS = re.compile(r"n_slots = (\d+), n_ctx_slot = (\d+)")


class MemoryWatch:
    """Samples a server's proportional set size while its body runs. peak: in MB, after the body."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.peak = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        self._sample()

    def _watch(self) -> None:
        while not self._over.wait(INTERVAL_S):
            self._sample()

    def _sample(self) -> None:
        self.peak = max(self.peak, self._server.memory()["total"])


def kv_megabytes(peer: str, log: Path, written: int, token_bytes: int) -> float:
    """MB of KV cache in memory after `written` bytes of KV, token_bytes a token.

    vLLM fills its whole cache with zeros; so does llama.cpp, which logs its slots and their lengths; ours takes it in idle
    time and as tokens fall into it. Raises PeerError when llama.cpp's log does not tell.
    """
    if peer == "core":
        return min(SERVER_KV_BYTES, written) / 1e6
    if peer == "vllm":
        return KV_GIB * 2**30 / 1e6
    slots = LLAMA_SLOTS.search(log.read_text(errors="replace"))
    if slots is None:
        raise PeerError(f"{log} does not tell the slots of its KV cache")
    return int(slots[1]) * int(slots[2]) * token_bytes / 1e6
