"""Stage 1: is what the engine believes of a GPU true? Ceilings, the driver, every kernel against the reference, tokens.

Owns: the order. Called by: `benchmarks.lease.child`.
"""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.lease import tests_there, tokens
from benchmarks.lease.place import Measurement, Place
from benchmarks.lease.rows import Row

MIB = 1 << 20


def versions(place: Place) -> Iterator[Row]:
    """What is installed."""
    names = ("torch", "triton", "flashinfer-python", "flash-attn", "transformers")
    found = {one.metadata["Name"]: one.version for one in importlib.metadata.distributions()}
    said = [f"python {platform.python_version()}", *(f"{name} {found.get(name, 'absent')}" for name in names)]
    yield Row("", ", ".join(said), is_fine=True)
    for tool in ("nvcc", "ncu", "compute-sanitizer"):
        yield Row("", f"{tool}: {shutil.which(tool) or 'absent'}", is_fine=True)
    if shutil.which("nvidia-smi"):
        asked = "name,driver_version,memory.total,clocks.max.sm,power.limit"
        command = ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"]
        yield Row("", subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip(), is_fine=True)


def ceilings(place: Place) -> Iterator[Row]:
    """What every share is of."""
    yield Row("", "copy", place.copy_rate / 1e12, "TB/s")
    yield Row("", "bfloat16 product", place.matmul_rate / 1e12, "TFLOP/s")


def device_of(place: Place) -> tuple[Any, Any]:
    """Return the calls of the device and its address space: in a rehearsal those of the fake device."""
    if place.is_cpu:
        from core_kit.devices.fake_device import FakeCalls
        from core_kit.devices.fake_space import FakeSpace

        return FakeCalls(), FakeSpace(1 << 30)
    from core_platforms.cuda.calls import TorchCalls
    from core_platforms.cuda.driver_memory import DriverMemory

    calls = TorchCalls(torch.cuda, torch.device("cuda", 0))
    calls.use()
    calls.zeros(1)
    return calls, DriverMemory(calls.device)


def virtual_memory(place: Place) -> Iterator[Row]:
    """Memory that is taken away under a recorded graph and given back, at the same addresses."""
    from core_platforms.cuda.virtual_memory import TaggedMemory

    calls, space = device_of(place)
    memory = TaggedMemory(space, calls.synchronize)
    before, _ = calls.memory()
    source = memory.allocate(place.pick(256, 1) * MIB, "kv")
    target = calls.zeros(source.numel())
    taken = before - calls.memory()[0]
    yield Row("", "memory of 256 MiB of the driver's and as much of torch's", taken / MIB, "MiB")
    graph = None if place.is_cpu else calls.record(lambda: target.copy_(source))
    address = source.data_ptr()
    for value in (3, 5):
        source.fill_(value)
        if graph is None:
            target.copy_(source)
        else:
            graph.replay()
        calls.synchronize()
        assert bool((target == value).all()), f"the graph read {target[0]}, expected {value}"
        released = memory.release("kv")
        memory.restore("kv")
        assert source.data_ptr() == address
        yield Row("", "released and restored under a graph", released / MIB, "MiB")
    memory.close()


def recording(place: Place) -> Iterator[Row]:
    """A graph is recorded while another thread allocates and copies."""
    calls, _ = device_of(place)
    stop = threading.Event()
    troubles: list[str] = []

    def disturb() -> None:
        calls.use()
        while not stop.is_set():
            try:
                torch.empty(MIB, dtype=torch.uint8, pin_memory=not place.is_cpu)
                calls.memory()
            except RuntimeError as error:
                troubles.append(str(error))
                return

    x = place.random(64, 64)
    out = torch.empty_like(x)
    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        torch.mul(x, 2, out=out)
        if not place.is_cpu:
            for _ in range(20):
                calls.record(lambda: torch.mul(x, 2, out=out)).replay()
            calls.synchronize()
    finally:
        stop.set()
        thread.join()
    assert torch.equal(out, x * 2) and not troubles, troubles
    yield Row("", "graphs recorded while another thread allocates", 20, "times")


def free_memory(place: Place) -> Iterator[Row]:
    """NVML and the driver should tell the same."""
    if place.is_cpu:
        yield Row("", "NVML: a processor has none", is_fine=True)
        return
    from core.plugin.registry import PluginRegistry

    told = torch.cuda.mem_get_info()[0]
    for row, answer in PluginRegistry().probe().items():
        for device in getattr(answer, "devices", ()):
            if row.name == "cuda":
                yield Row("", f"the probe's memory of {device.name}, a {device.profile}", device.memory / MIB, "MiB")
    yield Row("", "free by the driver", told / MIB, "MiB")


MEASUREMENTS = (
    Measurement("versions", 10, versions),
    Measurement("ceilings", 25, ceilings),
    Measurement("virtual memory", 20, virtual_memory),
    Measurement("recording", 20, recording),
    Measurement("free memory", 20, free_memory),
    Measurement("kernels", 170, tests_there.kernels),
    Measurement("device", 95, tests_there.device),
    Measurement("tokens", 80, tokens.tokens),
    Measurement("sanitizer", 90, tests_there.sanitizer),
)
