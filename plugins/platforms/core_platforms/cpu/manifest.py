"""Manifest of the `cpu` platform. Torch-free.

Owns: the platform's arguments, its probe and its proposals. Called by: `core.plugin`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from core.plugin.hookspecs import Device, LoadContext, PlatformView, PluginSpec, Probe, Proposal, hookimpl
from core_platforms.cpu.extension import ERROR_FILE, InstructionSet
from core_platforms.cpu.memory import available_memory, total_memory
from core_platforms.cpu.processors import place, processor_name, usable_processors
from core_runtime.contracts import Platform

CONTRACT = 1
MIXED_TOKENS = 24
"""Prompt tokens per step and thread (counting at least two threads) while requests are streaming: enough rows for
products to run at full speed.
"""
GIB = 1 << 30


class CpuArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The platform's own arguments, as `--platform-config.KEY`."""

    threads: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=1024)] | None,
        msgspec.Meta(
            description="compute threads; unset: one for each physical core that the process may use, within the control "
            "group's quota, followed while it runs"
        ),
    ] = None
    thread_binding: Annotated[
        str,
        msgspec.Meta(
            description="processor of each compute thread, the engine's own first: none (the system places them), "
            "auto (a core each), or processors such as 0-3,8"
        ),
    ] = "none"
    spin_microseconds: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=100_000)],
        msgspec.Meta(description="how long idle compute threads look for work before they sleep"),
    ] = 30
    prefault_mib: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=1 << 24)],
        msgspec.Meta(
            description="MiB of the KV cache to take from the system in idle time after the start; what is beyond is taken "
            "when it is first written"
        ),
    ] = 1024
    isa: Annotated[
        InstructionSet | None,
        msgspec.Meta(
            description="instruction set of the native kernels, in the whole process; unset: the best one here"
        ),
    ] = None


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin."""
    return PluginSpec(
        name="cpu",
        summary="processors of this machine, with native kernels where they are compiled",
        arguments=CpuArguments,
        capabilities={
            "dtypes": ["bfloat16", "float32"],
            "activation_dtype": "float32",
            **_off_on(os.uname().machine),
            "build": "core_platforms.cpu.build:rebuild",
            "build_log": str(ERROR_FILE),
        },
        priority=0,
    )


@hookimpl
def core_probe() -> Probe:
    """Report one CPU device; it is always present."""
    processors = len(usable_processors())
    about = f"{processor_name()}, {processors} processors"
    return Probe((Device("cpu", about, available_memory(), total_memory(), processors),))


@hookimpl
def core_propose(view: PlatformView) -> dict[str, Proposal]:
    """Propose bfloat16, batch sizes by usage and ranks, a modest KV cache, and the paged native attention.

    Raises UserError for threads that cannot be bound as requested.
    """
    threads, _ = place(*_threads(view.arguments["platform_config"]))
    memory = min(GIB, view.device.memory_bytes // 4)
    offline = view.context == "llm"
    ranks = view.arguments.get("tensor_parallel_size", 1) * view.arguments.get("pipeline_parallel_size", 1)
    purpose = "many requests at once" if offline else "short waits"
    use = f"{purpose}, {ranks} rank{'s' if ranks > 1 else ''}"
    num_seqs = 256 if offline else 128
    num_tokens = 4096 if offline else 2048
    proposals = {
        "dtype": Proposal("bfloat16", "half the bytes of float32 and the widest range"),
        "block_size": Proposal(16, "little waste at a sequence's end"),
        "max_num_seqs": Proposal(num_seqs * ranks, use),
        "max_num_batched_tokens": Proposal(num_tokens * ranks, use),
        "kv_cache_memory_bytes": Proposal(memory, "at most 1 GiB and a quarter of the available memory"),
        "attention_backend": Proposal(["cpu_paged", "torch_sdpa"], "native first"),
    }
    if not offline:
        proposals["max_num_mixed_batched_tokens"] = _short_steps(threads)
    return proposals


def _short_steps(threads: int) -> Proposal:
    """Propose short steps for a server: its streams wait for the prompt tokens of a step, and a CPU computes few tokens
    almost as efficiently as thousands.
    """
    tokens = MIXED_TOKENS * max(threads, 2)
    return Proposal(tokens, "streams wait no longer than for these")


def _off_on(machine: str) -> dict[str, bool]:
    """Return the features to disable on untested processor families."""
    if machine.startswith(("ppc64", "s390", "riscv")):
        return {"chunked_prefill": False, "prefix_caching": False}
    return {}


def _threads(given: Mapping[str, Any]) -> tuple[int | None, str]:
    """Return `threads` and `thread_binding`, or their defaults for values of a wrong type, which are reported
    elsewhere.
    """
    values = {key.replace("-", "_"): value for key, value in given.items()}
    threads = values.get("threads")
    binding = values.get("thread_binding")
    if not isinstance(threads, int):
        threads = None
    if not isinstance(binding, str):
        binding = "none"
    return threads, binding


@hookimpl
def core_load(context: LoadContext) -> Platform:
    """Build the platform."""
    from core_platforms.cpu.runtime import CpuPlatform

    arguments = context.arguments or CpuArguments()
    threads, processors = place(arguments.threads, arguments.thread_binding)
    return CpuPlatform(
        threads,
        processors,
        arguments.spin_microseconds,
        arguments.isa,
        prefault_bytes=arguments.prefault_mib << 20,
        follow=arguments.threads is None and arguments.thread_binding == "none",
    )
