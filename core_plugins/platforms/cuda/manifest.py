"""Manifest of the `cuda` platform. Torch-free.

Owns: the platform's probe and its proposals. Called by: `core.plugin`.
"""

from __future__ import annotations

from typing import NamedTuple

from core.plugin.contracts import Platform
from core.plugin.hookspecs import Device, LoadContext, PlatformView, PluginSpec, Probe, Proposal, hookimpl

CONTRACT = 1
GIB = 1 << 30


class Profile(NamedTuple):
    """Batches of a class of devices.

    name: for people.
    memory: bytes that a device of the class has at least.
    sm: the oldest architecture of the class, 90 for `sm_90`.
    offline, server: tokens a step.
    seqs: sequences a step.
    """

    name: str
    memory: int
    sm: int
    offline: int
    server: int
    seqs: int


PROFILES = (
    Profile("a GPU of 70 GiB or more, sm_90 or newer", 70 * GIB, 90, offline=16384, server=8192, seqs=1024),
    Profile("a GPU", 0, 0, offline=8192, server=2048, seqs=256),
)


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
    from core_plugins.platforms.cuda.driver import probe_driver

    return probe_driver()


@hookimpl
def core_propose(view: PlatformView) -> dict[str, Proposal]:
    """Large batches by use and class of device; the KV cache takes what `gpu_memory_utilization` leaves."""
    row = _profile(view.device)
    offline = view.context == "llm"
    purpose = "many requests at once" if offline else "short waits"
    use = f"{purpose} on {row.name}"
    return {
        "block_size": Proposal(16, "little waste at a sequence's end"),
        "max_num_seqs": Proposal(row.seqs, use),
        "max_num_batched_tokens": Proposal(row.offline if offline else row.server, use),
        "attention_backend": Proposal(["torch_sdpa"], "the paged backend that runs on any device"),
    }


def _profile(device: Device) -> Profile:
    """The first class that the device belongs to; the last one takes every device."""
    sm = _sm(device)
    return next(row for row in PROFILES if device.memory_bytes >= row.memory and sm >= row.sm)


def _sm(device: Device) -> int:
    """90 for `sm_90`; 0 when the driver did not say."""
    digits = device.profile.removeprefix("sm_")
    return int(digits) if digits.isdigit() else 0


@hookimpl
def core_load(context: LoadContext) -> Platform:
    """Build the platform."""
    from core_plugins.platforms.cuda.runtime import CudaPlatform

    return CudaPlatform()
