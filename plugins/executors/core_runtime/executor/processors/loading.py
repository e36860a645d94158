"""Loading of the configured logits processors.

Owns: the import of classes by their path, and which of the two contracts a class has. Never does: call a processor.
Called by: the worker, once.
"""

from __future__ import annotations

from typing import Any

from core.api.config import EngineConfig
from core.api.errors import UserError
from core.plugin.discovery import label
from core.plugin.hookspecs import LoadContext
from core.plugin.signatures import missing_parts, wrong_signatures
from core.plugin.table import PluginTable
from core_observers.named_object import named_object
from core_runtime.contracts import LogitsProcessor
from core_runtime.executor.plugin_loading import load_plugin
from core_runtime.executor.processors.indexed import IndexedProcessor
from core_runtime.executor.processors.logits_processors import LogitsProcessors, NamedProcessor
from core_runtime.specs.vllm_config import VllmConfig


def open_processors(config: EngineConfig, plugins: PluginTable) -> LogitsProcessors | None:
    """Load the processors of a worker; None if none are configured. Raises as `load_processors`."""
    if not config.plugins.logits_processors:
        return None
    return LogitsProcessors(load_processors(config, plugins), config.processor_timeout_s)


def load_processors(config: EngineConfig, plugins: PluginTable) -> list[NamedProcessor]:
    """Load all configured processors, in order. Raises UserError for an invalid path, PluginError for a plugin that fails."""
    found: list[NamedProcessor] = []
    for name in config.plugins.logits_processors:
        if "." in name or ":" in name:
            processor = _of_class(name, config)
            found.append(NamedProcessor(f"logits processor {name}", processor))
        else:
            plugin: LogitsProcessor = load_plugin(config, plugins, "logits_processor", name)
            row = plugins.row("logits_processor", name)
            found.append(NamedProcessor(label(row), plugin))
    return found


def _of_class(path: str, config: EngineConfig) -> LogitsProcessor:
    """Make an object of the class at `path`, which may follow either contract. Raises UserError."""
    said = f"--logits-processors {path}"
    named = named_object(path, said)
    if not isinstance(named, type):
        raise UserError(f"{said}: that is a {type(named).__name__}; expected a class.")
    try:
        if hasattr(named, "update_state"):
            return _indexed(named, config)
        context = LoadContext(device=config.device, dtype=config.model.dtype, config=config)
        processor = named(context)
    except Exception as error:  # raised by the user's class
        raise UserError(f"{said}: it cannot be built: {type(error).__name__}: {error}.") from error
    contract = [LogitsProcessor]
    lacking = missing_parts(contract, processor)
    wrong = [f"it lacks {', '.join(lacking)}"] if lacking else wrong_signatures(contract, processor)
    if wrong:
        raise UserError(
            f"{said}: {'; '.join(wrong)}; expected core_runtime.contracts.LogitsProcessor, or the interface of "
            "core.v1.sample.logits_processor.LogitsProcessor."
        )
    found: LogitsProcessor = processor
    return found


def _indexed(named: type[Any], config: EngineConfig) -> IndexedProcessor:
    """Wrap a class with vLLM's interface."""
    import torch

    view = VllmConfig(config)
    device = torch.device("cpu")  # rows that a processor changes are on the host
    return IndexedProcessor(lambda: named(view, device, False))
