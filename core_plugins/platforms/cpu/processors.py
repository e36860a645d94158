"""Processors of this machine and what this process may use of them, without torch.

Owns: reading the affinity mask, the cores, the control group's quota; the meaning of `threads` and `thread_binding`.
Never does: start or bind a thread. Called by: the manifest.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from core.api.errors import UserError

SYSTEM = Path("/sys")


def processor_name() -> str:
    """The processor's own name, or its architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return os.uname().machine
    text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    for line in text.splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return os.uname().machine


def usable_processors() -> list[int]:
    """Processors that this process may run on, in order."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def usable_cores() -> list[int]:
    """The first usable processor of each physical core, in order."""
    cores: dict[object, int] = {}
    for processor in usable_processors():
        siblings = SYSTEM / f"devices/system/cpu/cpu{processor}/topology/thread_siblings_list"
        cores.setdefault(_read(siblings) or processor, processor)
    return list(cores.values())


def quota() -> float | None:
    """Processors' worth of time that the control group allows (version 2, then version 1), or None without a limit."""
    group = SYSTEM / "fs/cgroup"
    version_2 = _read(group / "cpu.max") or "max"  # such as `150000 100000`, in microseconds
    limit, _, period = version_2.partition(" ")
    if limit == "max":
        limit = _read(group / "cpu/cpu.cfs_quota_us") or "-1"
        period = _read(group / "cpu/cpu.cfs_period_us") or "-1"
    if not (limit.isdigit() and period.isdigit()) or int(period) == 0:
        return None
    return int(limit) / int(period)


def default_threads() -> int:
    """One for each physical core that the process may use, within the quota; at least one."""
    threads = len(usable_cores())
    limit = quota()
    if limit is not None:
        threads = min(threads, int(limit))
    return max(threads, 1)


def place(threads: int | None, binding: str) -> tuple[int, tuple[int, ...]]:
    """The number of compute threads, and the processor of each (empty: the system places them).

    binding: `none`, `auto` (a core each, then the cores' other processors) or a list such as `0-3,8`, one each in order.
    Raises UserError for a list that is no list, names processors that the process may not use, or is too short.
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
    """`0-3,8` as [0, 1, 2, 3, 8]. Raises UserError."""
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
