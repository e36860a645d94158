"""Manifest of the `cpu` platform. Torch-free.

Owns: the platform's arguments, its probe and its proposals. Called by: `core.plugin`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from core.plugin.contracts import Platform
from core.plugin.hookspecs import Device, LoadContext, PlatformView, PluginSpec, Probe, Proposal, hookimpl
from plugins.platforms.cpu.extension import ERROR_FILE
from plugins.platforms.cpu.memory import available_memory, processor_name, usable_processors

CONTRACT = 1
GIB = 1 << 30


class CpuArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The platform's own arguments, as `--platform-config.KEY`."""

    threads: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=1024)] | None,
        msgspec.Meta(description="compute threads; unset: one for each processor that the process may use"),
    ] = None


@hookimpl
def core_spec() -> PluginSpec:
    """Say what the plugin is."""
    return PluginSpec(
        name="cpu",
        summary="processors of this machine, with native kernels where they are compiled",
        arguments=CpuArguments,
        capabilities={
            "dtypes": ["bfloat16", "float32"],
            "build": "plugins.platforms.cpu.build:rebuild",
            "build_log": str(ERROR_FILE),
        },
        priority=0,
    )


@hookimpl
def core_probe() -> Probe:
    """One device, always there."""
    return Probe((Device("cpu", f"{processor_name()}, {usable_processors()} processors", available_memory()),))


@hookimpl
def core_propose(view: PlatformView) -> dict[str, Proposal]:
    """Bfloat16, small batches, a modest KV cache, and the paged native attention."""
    memory = min(GIB, view.device.memory_bytes // 4)
    return {
        "dtype": Proposal("bfloat16", "half the bytes of float32 and the widest range"),
        "block_size": Proposal(16, "little waste at a sequence's end"),
        "max_num_seqs": Proposal(64, "enough to keep the processors busy"),
        "max_num_batched_tokens": Proposal(2048, "enough tokens a step for the matrix kernels"),
        "kv_cache_memory_bytes": Proposal(memory, "at most 1 GiB and a quarter of the available memory"),
        "attention_backend": Proposal(["cpu_paged", "torch_sdpa"], "native first"),
    }


@hookimpl
def core_load(context: LoadContext) -> Platform:
    """Build the platform."""
    from plugins.platforms.cpu.runtime import CpuPlatform

    arguments = context.arguments or CpuArguments()
    return CpuPlatform(arguments.threads or usable_processors())
