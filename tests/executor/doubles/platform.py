"""The doubles of devices as a platform, in a file of its own: it is given with `plugins=`."""

from typing import Annotated

import msgspec

from core.plugin.hookspecs import Device, PluginSpec, Probe, Proposal, hookimpl

CONTRACT = 1
KIND = "platform"


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """Which double."""

    kind: Annotated[str, msgspec.Meta(description="graph, late, gpu, or watched, a gpu that watches its host")] = (
        "graph"
    )


class DoublePlatform:
    """The CPU's platform; its device is the double."""

    num_threads = 1

    def __init__(self, double):
        self._double = double

    def open(self, device, kernels):
        from core_platforms.cpu.runtime import CpuPlatform

        return self._double(CpuPlatform(1).open("cpu", kernels))


def open_gpu(kernels, is_watched):
    """The runtime of GPUs, over a device that is not there."""
    from core_kit.devices.fake_device import FakeCalls, FakeKernels
    from core_kit.devices.fake_space import FakeSpace
    from core_platforms.cuda.graphs import Graphs
    from core_platforms.cuda.runtime import SleepingRuntime
    from core_platforms.cuda.virtual_memory import TaggedMemory
    from core_runtime.layers.kernels import KernelSet

    calls = FakeCalls(is_watched=is_watched)
    calls.use()
    chosen = FakeKernels(KernelSet(kernels, "cpu"), calls)
    graphs = Graphs(calls, budget=64 << 20, largest=32)
    memory = TaggedMemory(FakeSpace(1 << 30), calls.synchronize)
    runtime = SleepingRuntime(calls, chosen, graphs, memory)
    runtime.calls = calls
    return runtime


class GpuPlatform:
    """As `DevicePlatform`, without a device."""

    num_threads = 1

    def __init__(self, is_watched):
        self._is_watched = is_watched

    def open(self, device, kernels):
        return open_gpu(kernels, self._is_watched)


OFFLOADS = {"offload_backends": ["prefetch", "uva"]}


@hookimpl
def core_spec():
    """Say what the plugin is."""
    return PluginSpec(
        name="double",
        summary="doubles of devices",
        arguments=Arguments,
        capabilities={"dtypes": ["float32"], "activation_dtype": "float32", "device_graphs": True} | OFFLOADS,
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
    from core_kit.devices.async_device import FakeAsyncDevice
    from core_kit.devices.graph_runtime import FakeGraphRuntime

    kind = context.arguments.kind
    if kind in ("gpu", "watched"):
        return GpuPlatform(kind == "watched")
    return DoublePlatform(FakeGraphRuntime if kind == "graph" else FakeAsyncDevice)
