"""Manifest of the `cuda` platform. Torch-free.

Owns: the platform's probe and its proposals. Called by: `core.plugin`.
"""

from __future__ import annotations

from core.plugin.contracts import Platform
from core.plugin.hookspecs import LoadContext, PlatformView, PluginSpec, Probe, Proposal, hookimpl

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Say what the plugin is; any NVIDIA device goes before the processors."""
    return PluginSpec(
        name="cuda",
        summary="NVIDIA GPUs, with torch's operations",
        capabilities={"dtypes": ["bfloat16", "float16", "float32"]},
        priority=100,
    )


@hookimpl
def core_probe() -> Probe:
    """Ask the driver."""
    from plugins.platforms.cuda.driver import probe_driver

    return probe_driver()


@hookimpl
def core_propose(view: PlatformView) -> dict[str, Proposal]:
    """Large batches; the KV cache takes what `gpu_memory_utilization` leaves."""
    return {
        "block_size": Proposal(16, "little waste at a sequence's end"),
        "max_num_seqs": Proposal(256, "throughput of a GPU"),
        "max_num_batched_tokens": Proposal(2048 if view.context == "serve" else 8192, "by use: latency or throughput"),
        "attention_backend": Proposal(["torch_sdpa"], "the paged backend that runs on any device"),
    }


@hookimpl
def core_load(context: LoadContext) -> Platform:
    """Build the platform."""
    from plugins.platforms.cuda.runtime import CudaPlatform

    return CudaPlatform()
