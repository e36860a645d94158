"""Objects with the keys of an argument, as scripts written for vLLM pass them: `LLM(pooler_config=PoolerConfig(...))`.

Owns: these classes, and why others of vLLM's `config` package are not here. Never does: check a key, which whoever takes the
argument does. Called by: `core.config`, when a script imports a name from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Keys(dict[str, Any]):
    """The keys that were given."""

    def __init__(self, **keys: Any) -> None:
        super().__init__(keys)


class AttentionConfig(Keys):
    """For `attention_config`."""


class CompilationConfig(Keys):
    """For `compilation_config`."""


class KVEventsConfig(Keys):
    """For `kv_events_config`."""


class PoolerConfig(Keys):
    """For `pooler_config`."""


class ProfilerConfig(Keys):
    """For `profiler_config`."""


class SpeculativeConfig(Keys):
    """For `speculative_config`."""


class StructuredOutputsConfig(Keys):
    """For `structured_outputs_config`."""


NOT_SERVED: Mapping[str, str] = {
    "ECTransferConfig": "an instance does not exchange anything with others",
    "KVTransferConfig": "an instance does not exchange anything with others",
    "LoRAConfig": "LoRA adapters are not available",
    "ModelConfig": "the engine's configuration is core.api.config.EngineConfig",
    "ParallelConfig": "the engine runs on one rank",
}
"""Names of vLLM's package that scripts import, and why they are not here."""
