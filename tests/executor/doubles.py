"""The doubles of devices as plugins: a platform and a backend each, and the arguments of `LLM` that choose them.

Imports no torch before something is loaded, because platforms are probed in a process of its own.
"""

from __future__ import annotations

import importlib

from core.plugin.hookspecs import Device, PluginSpec, Probe, Proposal, hookimpl
from core_plugins.attention.torch_sdpa import manifest as torch_sdpa


class DoublePlatform:
    """The CPU's platform; its device is the double."""

    num_threads = 1

    def __init__(self, double):
        self._double = double

    def open(self, device, kernels):
        from core_plugins.platforms.cpu.runtime import CpuPlatform

        return self._double(CpuPlatform(1).open("cpu", kernels))


class Platform:
    """The manifest of a double's platform."""

    CONTRACT = 1
    KIND = "platform"

    def __init__(self, name, double):
        self._name, self._double = name, double

    @hookimpl
    def core_spec(self):
        return PluginSpec(
            name=self._name,
            summary="a double",
            capabilities={"dtypes": ["float32", "bfloat16"], "activation_dtype": "float32"},
            priority=-100,
        )

    @hookimpl
    def core_probe(self):
        return Probe((Device(f"{self._name}:0", "a double", 1 << 30),))

    @hookimpl
    def core_propose(self, view):
        return {
            "dtype": Proposal("float32", "the reference"),
            "kv_cache_memory_bytes": Proposal(8 << 20, "a small device"),
        }

    @hookimpl
    def core_load(self, context):
        return DoublePlatform(_loaded(self._double))


class Attention:
    """The manifest of a double's attention backend."""

    CONTRACT = 1
    KIND = "attention"

    def __init__(self, name, double, padding):
        self._name, self._double, self._padding = name, double, padding

    @hookimpl
    def core_spec(self):
        capabilities = {**torch_sdpa.core_spec().capabilities, "padding": self._padding}
        capabilities["layer_kinds"] = ["full", "sliding"]
        return PluginSpec(name=self._name, summary="a double", capabilities=capabilities, priority=-100)

    @hookimpl
    def core_load(self, context):
        from core_plugins.attention.torch_sdpa.backend import TorchSDPA

        return _loaded(self._double)(TorchSDPA(by_query=True), context.kernels)


def _loaded(name):
    """A class of `core.testing`: MODULE.CLASS."""
    module, _, attribute = name.partition(".")
    return getattr(importlib.import_module(f"core.testing.{module}"), attribute)


graph = Platform("graph", "graph_runtime.FakeGraphRuntime")
graph_attention = Attention("graph_attention", "graph_runtime.FakeGraphAttention", True)
exact_attention = Attention("exact_attention", "graph_runtime.FakeGraphAttention", False)
late = Platform("late", "async_device.FakeAsyncDevice")
late_attention = Attention("late_attention", "async_device.FakeAsyncAttention", True)


def double(platform, attention):
    """Arguments of `LLM`."""
    here = "tests.executor.doubles"
    return {
        "plugins": f"{here}:{platform},{here}:{attention}",
        "device": platform,
        "attention_backend": attention,
        "numerics": "reference",
    }
