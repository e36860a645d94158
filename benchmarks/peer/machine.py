"""What the figures were measured on. Called by: `benchmarks.peers`."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "asimd")


def describe() -> dict[str, str]:
    """Processor, memory, system, versions and the state of this checkout."""
    fields: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    memory = Path("/proc/meminfo").read_text().splitlines()[0].split()[1]
    flags = fields.get("flags", fields.get("Features", "")).split()
    return {
        "processor": fields.get("model name", platform.machine()),
        "cores": str(len(os.sched_getaffinity(0))),
        "instruction sets": ", ".join(flag for flag in FLAGS if flag in flags),
        "memory": f"{int(memory) / 2**20:.0f} GiB",
        "system": f"{platform.system()} {platform.release().split('-')[0]}, Python {platform.python_version()}",
        "torch": version("torch"),
        "commit": commit(),
    }


def commit() -> str:
    """The checkout's commit, with a mark when files differ from it."""
    root = Path(__file__).resolve().parents[2]
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude", "*"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return done.stdout.strip() or "unknown"
