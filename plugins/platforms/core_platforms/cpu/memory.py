"""Memory sizes of this machine, without torch.

Owns: reading /proc and the control group. Never does: allocate. Called by: the manifest and the runtime.
"""

from __future__ import annotations

from pathlib import Path


def available_memory() -> int:
    """Return the bytes that programs may still allocate, within the control group's limit when there is one."""
    values = _meminfo()
    available = values.get("MemAvailable", values.get("MemFree", 0))
    limit = _group("memory.max")
    used = _group("memory.current")
    if limit is None or used is None:
        return available
    left = min(available, limit - used)
    return max(left, 0)


def total_memory() -> int:
    """Return the bytes of memory of this machine, or of the control group when it is limited."""
    total = _meminfo()["MemTotal"]
    limit = _group("memory.max")
    return total if limit is None else min(total, limit)


def _meminfo() -> dict[str, int]:
    """Parse /proc/meminfo; sizes in bytes."""
    values = {}
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        name, _, rest = line.partition(":")
        kibibytes = int(rest.split()[0])
        values[name] = kibibytes * 1024
    return values


def _group(name: str) -> int | None:
    """Return a number of the control group; None when it is unlimited or there is no group."""
    try:
        text = Path("/sys/fs/cgroup", name).read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
