"""The plugins that the configuration chose, as objects.

Owns: what each kind is told when it is loaded. Never does: choose. Called by: whoever builds models, and the worker.
"""

from __future__ import annotations

from typing import Any

from core.api.config import EngineConfig
from core.plugin.capabilities import roundings_of
from core.plugin.hookspecs import LoadContext
from core.plugin.table import PluginTable
from core_runtime.contracts import Platform, QuantizationMethod, Runtime
from core_runtime.layers.rows import RowKernels
from core_runtime.specs.checkpoint import CheckpointManifest
from core_runtime.specs.module_spec import ModelSpec


def load_plugin(config: EngineConfig, plugins: PluginTable, kind: str, name: str, **extra: Any) -> Any:
    """A chosen plugin with its arguments. extra: further fields of its `LoadContext`."""
    arguments = config.plugins.arguments.get(f"{kind}.{name}")
    context = LoadContext(device=config.device, dtype=config.model.dtype, arguments=arguments, config=config, **extra)
    return plugins.load(kind, name, context)


def open_runtime(config: EngineConfig, plugins: PluginTable) -> Runtime:
    """The configured device, with its kernels."""
    choices = config.plugins
    platform: Platform = load_plugin(config, plugins, "platform", choices.platform)
    threads = {"num_threads": platform.num_threads}
    providers = [load_plugin(config, plugins, "kernels", name, options=threads) for name in choices.kernels]
    if config.model.numerics == "reference":
        providers.append(RowKernels())
    return platform.open(config.device, providers)


def quantization_method(
    config: EngineConfig, manifest: CheckpointManifest, plugins: PluginTable
) -> QuantizationMethod | None:
    """That of the checkpoint, or the one that rounds it while it loads; None: its tensors are plain."""
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
    """The attention backend of each layer; layers of one kind share it."""
    names = config.plugins.attention
    loaded: dict[str, Any] = {}
    for name in sorted(set(names.values())):
        loaded[name] = load_plugin(config, plugins, "attention", name, kernels=runtime.kernels)
    backends: list[Any] = []
    for mixer in spec.mixers:
        name = names[mixer.kind]
        backends.append(loaded[name])
    return backends
