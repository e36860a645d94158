"""Binding of an engine to NUMA nodes: the threads that it starts, and the memory that it allocates.

Owns: `NumaBinding`, an observer that binds the engine's thread before there is an executor, and the system's calls for it.
Never does: choose a node (the configuration did). Called by: the engine's composition.

Processors and memory policy belong to a thread, and threads inherit those of the one that starts them.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import platform
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from core.api.errors import UserError
from core.engine.observer import EngineObserver, EngineStart
from core_observers.observer_settings import NUMA_BINDING

logger = logging.getLogger(__name__)

SET_MEMPOLICY: Final = {"x86_64": 238, "aarch64": 237}
"""Number of the system's call, by machine; libnuma, which has a function for it, need not be installed."""
DEFAULT, BIND = 0, 2
MOST_NODES: Final = 1024
MAPS: Final = Path("/proc/thread-self/numa_maps")


class NumaBinding(EngineObserver):
    """The binding of one engine. before: processors of its thread before it."""

    def __init__(self, before: set[int]) -> None:
        self._before = before

    @classmethod
    def open(cls, start: EngineStart) -> Self | None:
        """Bind this thread; None where the configuration binds nothing. Raises UserError where the system does not do it."""
        given = start.config.plugins.arguments.get(NUMA_BINDING)
        if given is None:
            return None
        if not sys.platform.startswith("linux"):
            raise UserError("--numa-bind: threads are bound on Linux alone; leave it out.")
        nodes, processors = given["nodes"], given["processors"]
        binding = cls(os.sched_getaffinity(0))
        try:
            os.sched_setaffinity(0, processors)
        except OSError as error:
            raise UserError(f"--numa-bind: the system binds no thread to {processors}: {error.strerror}.") from None
        try:
            set_memory_policy(nodes)
            found = nodes_of_new_memory()
        except OSError as error:
            binding.close()
            raise UserError(
                f"--numa-bind: the system binds no memory to node {nodes[0]}: {error.strerror}; in a container, allow "
                "set_mempolicy (CAP_SYS_NICE), or leave it out."
            ) from None
        if not found or not found <= set(nodes):
            binding.close()
            raise UserError(f"--numa-bind: new memory came from nodes {sorted(found)}, expected {nodes}; leave it out.")
        logger.info(
            "Bound to NUMA node %s: processors %s; new memory comes from there.",
            ", ".join(map(str, nodes)),
            ", ".join(map(str, processors)),
        )
        return binding

    def close(self) -> None:
        """Let this thread run and allocate as before."""
        set_memory_policy(())
        os.sched_setaffinity(0, self._before)


def set_memory_policy(nodes: Sequence[int]) -> None:
    """Let this thread, and those that it starts, allocate on these nodes alone; empty: anywhere. Raises OSError."""
    number = SET_MEMPOLICY.get(platform.machine())
    if number is None:
        raise OSError(0, f"its call is not known for {platform.machine()}")
    bits = 8 * ctypes.sizeof(ctypes.c_ulong)
    mask = (ctypes.c_ulong * (MOST_NODES // bits))()
    for node in nodes:
        mask[node // bits] |= 1 << (node % bits)
    library = ctypes.CDLL(None, use_errno=True)
    arguments = (BIND, ctypes.byref(mask), ctypes.c_ulong(MOST_NODES)) if nodes else (DEFAULT, None, ctypes.c_ulong(0))
    if library.syscall(ctypes.c_long(number), *arguments):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def nodes_of_new_memory() -> set[int]:
    """Return the nodes that a page which is written now lies on, as the system reports it. Raises OSError."""
    with mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as page:
        page[0] = 1
        view = ctypes.c_char.from_buffer(page)
        address = ctypes.addressof(view)
        found = nodes_at(address, MAPS.read_text(encoding="utf-8", errors="replace"))
        del view
    return found


def nodes_at(address: int, maps: str) -> set[int]:
    """Return the nodes of the pages of the mapping that holds an address. maps: content of a `numa_maps`."""
    best = ""
    start = -1
    for line in maps.splitlines():
        first = int(line.partition(" ")[0], 16)
        if start < first <= address:
            start, best = first, line
    return {int(node) for node in re.findall(r"\bN(\d+)=[1-9]", best)}
