"""The doubles of devices as a platform, in a file of its own: it is given with `plugins=`."""

from typing import Annotated

import msgspec

from core.plugin.hookspecs import Device, PluginSpec, Probe, Proposal, hookimpl

CONTRACT = 1
KIND = "platform"


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """Which double."""

    kind: Annotated[str, msgspec.Meta(description="graph or late")] = "graph"


class DoublePlatform:
    """The CPU's platform; its device is the double."""

    num_threads = 1

    def __init__(self, double):
        self._double = double

    def open(self, device, kernels):
        from core_plugins.platforms.cpu.runtime import CpuPlatform

        return self._double(CpuPlatform(1).open("cpu", kernels))


@hookimpl
def core_spec():
    """Say what the plugin is."""
    return PluginSpec(
        name="double",
        summary="doubles of devices",
        arguments=Arguments,
        capabilities={"dtypes": ["float32"], "activation_dtype": "float32"},
        priority=-100,
    )


@hookimpl
def core_probe():
    """One device."""
    return Probe((Device("double:0", "a double", 1 << 30),))


@hookimpl
def core_propose(view):
    """Little memory."""
    return {"kv_cache_memory_bytes": Proposal(8 << 20, "a small device")}


@hookimpl
def core_load(context):
    """Build the platform."""
    from core.testing.async_device import FakeAsyncDevice
    from core.testing.graph_runtime import FakeGraphRuntime

    return DoublePlatform(FakeGraphRuntime if context.arguments.kind == "graph" else FakeAsyncDevice)
