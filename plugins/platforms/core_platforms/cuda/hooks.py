"""Manifest hooks of a GPU platform, for any vendor. Torch-free.

Owns: what GPU platforms share: capabilities, batch sizes by device class, preferred attention. Never does: query a
driver (each vendor's own module does). Called by: the manifests.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, NamedTuple

from core.plugin.hookspecs import Device, LoadContext, PlatformView, PluginSpec, Probe, Proposal, hookimpl
from core_platforms.cuda.arguments import MOST_GRAPH_MIB, DeviceArguments
from core_platforms.cuda.chips import sm_of
from core_runtime.contracts import Platform

GIB: Final = 1 << 30


class Profile(NamedTuple):
    """Batch sizes for a class of devices.

    name: for messages.
    memory: minimum bytes of a device in the class.
    sm: the oldest architecture of the class, 90 for `sm_90`.
    offline, server: tokens per step.
    seqs: sequences per step.
    """

    name: str
    memory: int
    sm: int
    offline: int
    server: int
    seqs: int


CONTEXT: Final = 512 << 20
"""Bytes of device memory that a process uses in addition to its allocations: the driver's context, libraries, loaded
kernels.
"""

CAPABILITIES: Final[dict[str, Any]] = {
    "dtypes": ["bfloat16", "float16", "float32"],
    "device_graphs": True,
    "reserved_bytes": CONTEXT + (MOST_GRAPH_MIB << 20),
    "logits_bytes": 512 << 20,
    "input_roundings": ["none", "bf16", "int8_row"],
    "offload_backends": ["prefetch", "uva"],
}
"""Capabilities shared by all GPU platforms."""

ATTENTION: Final = ("triton", "flash_attn", "flashinfer", "flex", "torch_sdpa")
"""Attention backends, best first; a backend that is not installed or does not fit reports the reason."""

PROFILES: Final = (
    Profile("a GPU of 70 GiB or more, sm_90 or newer", 70 * GIB, 90, offline=16384, server=8192, seqs=1024),
    Profile("a GPU", 0, 0, offline=8192, server=2048, seqs=256),
)


class Hooks(NamedTuple):
    """The functions of a platform's manifest."""

    spec: Callable[[], PluginSpec]
    probe: Callable[[], Probe]
    propose: Callable[[PlatformView], dict[str, Proposal]]
    load: Callable[[LoadContext], Platform]


def hooks_of(name: str, summary: str, priority: int, driver: str) -> Hooks:
    """Return the hooks of one vendor's platform. driver: the module whose `probe_driver` lists devices; imported only
    for probing.
    """

    @hookimpl
    def core_spec() -> PluginSpec:
        """Describe the plugin."""
        return PluginSpec(
            name=name, summary=summary, arguments=DeviceArguments, capabilities=CAPABILITIES, priority=priority
        )

    @hookimpl
    def core_probe() -> Probe:
        """List devices through the driver."""
        found: Probe = import_module(driver).probe_driver()
        return found

    @hookimpl
    def core_propose(view: PlatformView) -> dict[str, Proposal]:
        """Propose large batches by usage and device class; the KV cache takes what `gpu_memory_utilization` leaves."""
        return proposals(view)

    @hookimpl
    def core_load(context: LoadContext) -> Platform:
        """Build the platform."""
        from core_platforms.cuda.platform import MAKERS, DevicePlatform

        return DevicePlatform(MAKERS[name], context.arguments or DeviceArguments())

    return Hooks(core_spec, core_probe, core_propose, core_load)


def proposals(view: PlatformView) -> dict[str, Proposal]:
    """Return the proposals for a device of any vendor."""
    row = _profile(view.device)
    offline = view.context == "llm"
    purpose = "many requests at once" if offline else "short waits"
    use = f"{purpose} on {row.name}"
    return {
        "block_size": Proposal(16, "little waste at a sequence's end"),
        "max_num_seqs": Proposal(row.seqs, use),
        "max_num_batched_tokens": Proposal(row.offline if offline else row.server, use),
        "attention_backend": Proposal(list(ATTENTION), "the engine's own kernels first"),
    }


def _profile(device: Device) -> Profile:
    """Return the first class that the device belongs to; the last class accepts every device."""
    sm = sm_of(device.profile)
    memory = device.total_bytes or device.memory_bytes
    return next(row for row in PROFILES if memory >= row.memory and sm >= row.sm)
