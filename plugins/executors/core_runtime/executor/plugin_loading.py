"""Loading of the configured plugins.

Owns: the arguments that each kind is loaded with. Never does: choose. Called by: the code that builds models, and the worker.
"""

from __future__ import annotations

from typing import Any

from core.api.config import EngineConfig
from core.plugin.capabilities import roundings_of
from core.plugin.hookspecs import LoadContext
from core.plugin.table import PluginTable
from core_runtime.contracts import AdapterFormat, Platform, QuantizationMethod, Runtime
from core_runtime.layers.kernels import KernelSet
from core_runtime.layers.operation_order import apply_order
from core_runtime.layers.rows import RowKernels
from core_runtime.specs.checkpoint import CheckpointManifest
from core_runtime.specs.module_spec import ModelSpec
from core_runtime.specs.operation_order import order_name, order_of


def load_plugin(config: EngineConfig, plugins: PluginTable, kind: str, name: str, **extra: Any) -> Any:
    """Load a chosen plugin with its arguments. extra: further fields of its `LoadContext`."""
    arguments = config.plugins.arguments.get(f"{kind}.{name}")
    context = LoadContext(device=config.device, dtype=config.model.dtype, arguments=arguments, config=config, **extra)
    return plugins.load(kind, name, context)


def open_runtime(config: EngineConfig, plugins: PluginTable) -> Runtime:
    """Open the configured device, with its kernels."""
    choices = config.plugins
    platform: Platform = load_plugin(config, plugins, "platform", choices.platform)
    threads = {"num_threads": platform.num_threads}
    named = {name: load_plugin(config, plugins, "kernels", name, options=threads) for name in choices.kernels}
    order = order_of(config)
    apply_order(named, order, config.device.partition(":")[0])
    providers = list(named.values())
    if config.model.numerics == "reference":
        # Last: `KernelSet` then leaves out its own reference kernels.
        providers.append(RowKernels())
    runtime = platform.open(config.device, providers)
    if order and isinstance(runtime.kernels, KernelSet):
        runtime.kernels.numerics += order_name(order)
    return runtime


def adapter_formats(config: EngineConfig, plugins: PluginTable) -> dict[str, AdapterFormat]:
    """Return the formats of adapters, by name."""
    names = sorted(row.name for row in config.plugins.table if row.kind == "adapter")
    return {name: load_plugin(config, plugins, "adapter", name) for name in names}


def quantization_method(
    config: EngineConfig, manifest: CheckpointManifest, plugins: PluginTable
) -> QuantizationMethod | None:
    """Return the checkpoint's quantization, or the one that quantizes it while it loads; None: its tensors are plain."""
    name = config.plugins.quantization
    if name is None:
        return None
    roundings = roundings_of(plugins.capabilities("platform", config.plugins.platform))
    facts = manifest.facts()
    method: QuantizationMethod = load_plugin(
        config, plugins, "quantization", name, facts=facts, manifest=manifest, roundings=roundings
    )
    return method


def attention_backends(config: EngineConfig, spec: ModelSpec, runtime: Runtime, plugins: PluginTable) -> list[Any]:
    """Return the attention backend of each layer; layers with the same backend share one object."""
    names = config.plugins.attention
    loaded: dict[str, Any] = {}
    # One object per plugin: layers that share it also share a step's metadata.
    for name in sorted(set(names.values())):
        loaded[name] = load_plugin(config, plugins, "attention", name, kernels=runtime.kernels)
    backends: list[Any] = []
    for mixer in spec.mixers:
        name = names[mixer.kind]
        backends.append(loaded[name])
    return backends
