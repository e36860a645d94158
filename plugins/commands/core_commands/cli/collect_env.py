"""`core collect-env`: the facts about this machine that a bug report needs.

Owns: the list of facts and their sources. Never does: send anything, or show what `private` hides.
Called by: the frame.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import core
from core.api.errors import UserError
from core.args.show import Section, show
from core.commands.tables import print_json
from core.commands.words import take_help, take_switch
from core.version import __version__
from core_commands.cli.private import hidden_value, without_names
from core_config.stages.memory import human_bytes

USAGE = "core collect-env [--json]"
SUMMARY = "Tell versions, processor, memory, limits, GPUs and plugins of this machine, for a report about a problem."
ROWS = (("--json", "As JSON."),)
PACKAGES = (
    "core-engine",
    "torch",
    "numpy",
    "transformers",
    "tokenizers",
    "safetensors",
    "huggingface-hub",
    "msgspec",
    "pyzmq",
    "fastapi",
    "uvicorn",
    "uvloop",
    "httptools",
    "llguidance",
    "xgrammar",
    "vllm",
)
PREFIXES = ("CORE_", "HF_", "TORCH", "OMP_", "MKL_", "OPENBLAS_", "CUDA_", "NVIDIA_", "LD_PRELOAD", "MALLOC_")
"""Prefixes of the environment variables to report."""
FLAGS = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "avx_vnni",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "asimddp",
    "bf16",
    "i8mm",
    "sve",
)
"""Processor flags to report: those that kernels depend on."""
GPU_SECONDS = 10
UNKNOWN = "unknown"

Facts = Mapping[str, str]


def collect_env(words: list[str]) -> int:
    """Run the command; returns the exit code."""
    if take_help(words) is not None:
        show(USAGE, SUMMARY, [Section("Arguments", ROWS)])
        return 0
    as_json = take_switch(words, "--json")
    if words:
        raise UserError(f"core collect-env {words[0]}: unexpected; it takes --json only.")
    found = {title: read() for title, read in SECTIONS.items()}
    if as_json:
        print_json(found)
        return 0
    for title, facts in found.items():
        print(f"{title}:")
        for name, value in facts.items():
            print(f"  {name}: {value}")
    return 0


def _system() -> Facts:
    libc, version = platform.libc_ver()
    return {
        "core": __version__,
        "installed at": without_names(str(Path(core.__file__).resolve().parents[1])),
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "distribution": _distribution(),
        "C library": f"{libc} {version}".strip() or UNKNOWN,
        "compiler": shutil.which("c++") or shutil.which("g++") or "none, and none is needed",
    }


def _processor() -> Facts:
    rows = _pairs("/proc/cpuinfo")
    flags = set(rows.get("flags", rows.get("Features", "")).split())
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "model": rows.get("model name", platform.processor() or UNKNOWN),
        "cores": f"{os.cpu_count()}, of which this process may use {usable}",
        "share (cgroup cpu.max)": _text("/sys/fs/cgroup/cpu.max"),
        "extensions": ", ".join(flag for flag in FLAGS if flag in flags) or UNKNOWN,
    }


def _memory() -> Facts:
    rows = _pairs("/proc/meminfo")
    limit = _text("/sys/fs/cgroup/memory.max")
    return {
        "total": _kilobytes(rows.get("MemTotal")),
        "available": _kilobytes(rows.get("MemAvailable")),
        "limit (cgroup memory.max)": human_bytes(int(limit)) if limit.isdigit() else limit,
        "huge pages": _text("/sys/kernel/mm/transparent_hugepage/enabled"),
        "shared memory free": _free("/dev/shm"),
        "temporary files free": _free("/tmp"),
    }


def _limits() -> Facts:
    import resource

    names = {"open files": resource.RLIMIT_NOFILE, "processes": resource.RLIMIT_NPROC, "stack": resource.RLIMIT_STACK}
    found: dict[str, str] = {}
    for name, number in names.items():
        soft, hard = (_limit(value) for value in resource.getrlimit(number))
        found[name] = f"{soft} (at most {hard})"
    return found


def _gpus() -> Facts:
    program = shutil.which("nvidia-smi")
    if program is None:
        return {"nvidia-smi": "not there"}
    query = [program, "--query-gpu=name,driver_version,memory.total,compute_cap", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=GPU_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"nvidia-smi": f"failed: {error}"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"nvidia-smi": f"ended with code {done.returncode}"}
    return {f"gpu {number}": line for number, line in enumerate(lines)}


def _packages() -> Facts:
    found: dict[str, str] = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _plugins() -> Facts:
    """Report plugins of other packages and broken plugins; the others are only counted."""
    from core.plugin.distributions import is_own
    from core.plugin.listing import listing
    from core.plugin.registry import PluginRegistry

    found: dict[str, str] = {}
    num_usable = 0
    for item in listing(PluginRegistry()):
        is_ours = is_own(item.row.distribution)
        if item.status == "available" and is_ours:
            num_usable += 1
            continue
        lines = (item.reason or "").splitlines() or [""]
        origin = "" if is_ours else f" ({item.row.distribution} {item.row.version})"
        reason = without_names(lines[0])
        found[f"{item.row.kind}.{item.row.name}"] = f"{item.status}{origin} {reason}".strip()
    return {"of core, usable": str(num_usable), **found}


def _environment() -> Facts:
    found: dict[str, str] = {}
    for name, value in sorted(os.environ.items()):
        if name.startswith(PREFIXES):
            found[name] = hidden_value(name, value)
    return found


SECTIONS: Mapping[str, Callable[[], Facts]] = {
    "System": _system,
    "Processor": _processor,
    "Memory": _memory,
    "Limits": _limits,
    "GPUs": _gpus,
    "Packages": _packages,
    "Plugins": _plugins,
    "Environment": _environment,
}


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", UNKNOWN)
    except OSError:
        return UNKNOWN


def _pairs(path: str) -> dict[str, str]:
    """Parse `name : value` lines of a file, the first of each name; empty if there is no such file."""
    found: dict[str, str] = {}
    text = _text(path)
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name.strip(), value.strip())
    return found


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return UNKNOWN


def _kilobytes(text: str | None) -> str:
    number = (text or "").split(" ")[0]
    return human_bytes(1024 * int(number)) if number.isdigit() else UNKNOWN


def _free(path: str) -> str:
    try:
        return human_bytes(shutil.disk_usage(path).free)
    except OSError:
        return UNKNOWN


def _limit(value: int) -> str:
    return "unlimited" if value in (-1, sys.maxsize, (1 << 64) - 1) else str(value)
