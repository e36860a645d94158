"""Memory of this machine, without torch.

Owns: reading /proc and the control group. Never does: allocate. Called by: the manifest and the runtime.
"""

from __future__ import annotations

from pathlib import Path


def available_memory() -> int:
    """Bytes that programs may still allocate, within the control group's limit when there is one."""
    fields = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    values = {line.partition(":")[0]: int(line.split()[1]) * 1024 for line in fields}
    available = values.get("MemAvailable", values.get("MemFree", 0))
    limit, used = _group("memory.max"), _group("memory.current")
    return available if limit is None or used is None else max(min(available, limit - used), 0)


def total_memory() -> int:
    """Bytes of this machine, or of the control group when it is limited."""
    fields = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    total = next(int(line.split()[1]) * 1024 for line in fields if line.startswith("MemTotal"))
    limit = _group("memory.max")
    return total if limit is None else min(total, limit)


def _group(name: str) -> int | None:
    try:
        text = (Path("/sys/fs/cgroup") / name).read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
