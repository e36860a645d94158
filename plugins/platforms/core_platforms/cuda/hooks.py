"""The hooks of a platform of GPUs, for any maker. Torch-free.

Owns: what the platforms have in common: capabilities, batches by class of device, preferred attention. Never does: ask a driver
(each maker's own module does). Called by: the manifests.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, NamedTuple

from core.plugin.hookspecs import Device, LoadContext, PlatformView, PluginSpec, Probe, Proposal, hookimpl
from core_platforms.cuda.arguments import MOST_GRAPH_MIB, DeviceArguments
from core_platforms.cuda.chips import chip_of, sm_of
from core_runtime.contracts import Platform

GIB: Final = 1 << 30


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


CONTEXT: Final = 512 << 20
"""Bytes that a process takes of a device beside what it asks for: the driver's context, libraries, loaded kernels."""

CAPABILITIES: Final[dict[str, Any]] = {
    "dtypes": ["bfloat16", "float16", "float32"],
    "device_graphs": True,
    "reserved_bytes": CONTEXT + (MOST_GRAPH_MIB << 20),
    "logits_bytes": 512 << 20,
    "input_roundings": ["none", "bf16", "int8_row"],
}
"""Of all platforms of GPUs."""

ATTENTION: Final = ("triton", "flash_attn", "flashinfer", "flex", "torch_sdpa")
"""Best first; those that are not installed, or that do not fit, say why."""

PROFILES: Final = (
    Profile("a GPU of 70 GiB or more, sm_90 or newer", 70 * GIB, 90, offline=16384, server=8192, seqs=1024),
    Profile("a GPU", 0, 0, offline=8192, server=2048, seqs=256),
)


class Hooks(NamedTuple):
    """The functions of a manifest."""

    spec: Callable[[], PluginSpec]
    probe: Callable[[], Probe]
    propose: Callable[[PlatformView], dict[str, Proposal]]
    load: Callable[[LoadContext], Platform]


def hooks_of(name: str, summary: str, priority: int, driver: str) -> Hooks:
    """Those of one maker's platform. driver: the module whose `probe_driver` asks for devices, imported when it is."""

    @hookimpl
    def core_spec() -> PluginSpec:
        """Say what the plugin is."""
        return PluginSpec(
            name=name, summary=summary, arguments=DeviceArguments, capabilities=CAPABILITIES, priority=priority
        )

    @hookimpl
    def core_probe() -> Probe:
        """Ask the driver."""
        found: Probe = import_module(driver).probe_driver()
        return found

    @hookimpl
    def core_propose(view: PlatformView) -> dict[str, Proposal]:
        """Large batches by use and class of device; the KV cache takes what `gpu_memory_utilization` leaves."""
        return proposals(view)

    @hookimpl
    def core_load(context: LoadContext) -> Platform:
        """Build the platform."""
        from core_platforms.cuda.platform import MAKERS, DevicePlatform

        return DevicePlatform(MAKERS[name], context.arguments or DeviceArguments())

    return Hooks(core_spec, core_probe, core_propose, core_load)


def proposals(view: PlatformView) -> dict[str, Proposal]:
    """For any maker's devices."""
    row = _profile(view.device)
    offline = view.context == "llm"
    purpose = "many requests at once" if offline else "short waits"
    use = f"{purpose} on {row.name}"
    proposed = {
        "block_size": Proposal(16, "little waste at a sequence's end"),
        "max_num_seqs": Proposal(row.seqs, use),
        "max_num_batched_tokens": Proposal(row.offline if offline else row.server, use),
        "attention_backend": Proposal(list(ATTENTION), "the engine's own kernels first"),
    }
    chip = chip_of(view.device.profile)
    if chip is not None and "bfloat16" not in chip.dtypes:
        proposed["dtype"] = Proposal("float16", f"{chip.name} has no matrix units for bfloat16")
    return proposed


def _profile(device: Device) -> Profile:
    """The first class that the device belongs to; the last one takes every device."""
    sm = sm_of(device.profile)
    memory = device.total_bytes or device.memory_bytes
    return next(row for row in PROFILES if memory >= row.memory and sm >= row.sm)
