"""The processors of this machine and the ones this process may use, without torch.

Owns: reading the affinity mask and the cores; the meaning of `threads` and `thread_binding`.
Never does: start or bind a thread. Called by: the manifest, and `follower` while the engine runs.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from core.api.errors import UserError
from core_platforms.cpu import control_group

SYSTEM = Path("/sys")
MEMBERSHIP = Path("/proc/self/cgroup")


def processor_name() -> str:
    """Return the processor's model name, or its architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return os.uname().machine
    text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    for line in text.splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return os.uname().machine


def usable_processors() -> list[int]:
    """Return the processors that this process may run on, in order."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def usable_cores() -> list[int]:
    """Return the first usable processor of each physical core, in order."""
    cores: dict[object, int] = {}
    for processor in usable_processors():
        siblings = SYSTEM / f"devices/system/cpu/cpu{processor}/topology/thread_siblings_list"
        cores.setdefault(_read(siblings) or processor, processor)
    return list(cores.values())


def quota() -> float | None:
    """Return the processors' worth of time that the control groups allow, or None without a limit."""
    return control_group.quota(SYSTEM, _read(MEMBERSHIP) or "")


def default_threads() -> int:
    """Return one thread for each physical core that the process may use, within the quota; at least one.

    A quota is rounded up from half a processor on: 1.5 processors do more with two threads that each wait a quarter of
    the time than with one that never waits.
    """
    threads = len(usable_cores())
    limit = quota()
    if limit is not None:
        threads = min(threads, int(limit + 0.5))
    return max(threads, 1)


def place(threads: int | None, binding: str) -> tuple[int, tuple[int, ...]]:
    """Return the number of compute threads, and the processor of each (empty: the system places them).

    binding: `none`, `auto` (a core each, then the cores' other processors) or a list such as `0-3,8`, one each in
    order. Raises UserError for a malformed list, for processors that the process may not use, and for a list that is
    too short.
    """
    if binding == "none":
        return threads or default_threads(), ()
    usable = usable_processors()
    if binding == "auto":
        cores = usable_cores()
        others = [processor for processor in usable if processor not in cores]
        order = cores + others
        count = threads or default_threads()
        if count > len(order):
            return count, ()
        return count, tuple(order[:count])
    order = processor_list(binding)
    missing = sorted(set(order) - set(usable))
    if missing:
        raise UserError(f"thread_binding '{binding}': this process may not use processor {missing[0]}, only {usable}.")
    count = threads or len(order)
    if count > len(order):
        raise UserError(f"thread_binding '{binding}' names {len(order)} processors for {count} threads.")
    return count, tuple(order[:count])


def processor_list(text: str) -> list[int]:
    """Parse a processor list: `0-3,8` is [0, 1, 2, 3, 8]. Raises UserError."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", part)
        first = int(match[1]) if match else 0
        last = int(match[2] or match[1]) if match else -1
        named = range(first, last + 1)
        if not named or not set(named).isdisjoint(found):
            raise UserError(
                f"thread_binding '{text}' is not understood at '{part}'; expected none, auto, or processors such as 0-3,8."
            )
        found += named
    return found


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip() or None
    except OSError:
        return None
