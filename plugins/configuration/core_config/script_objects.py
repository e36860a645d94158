"""Objects with the keys of an argument, as scripts written for vLLM pass them: `LLM(pooler_config=PoolerConfig(...))`.

Owns: these classes, and why others of vLLM's `config` package are not here. Never does: check a key, which whoever takes the
argument does. Called by: `core_config`, when a script imports a name from it.
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


class KVTransferConfig(Keys):
    """For `kv_transfer_config`."""


class PoolerConfig(Keys):
    """For `pooler_config`."""


class ProfilerConfig(Keys):
    """For `profiler_config`."""


class ReasoningConfig(Keys):
    """For `reasoning_config`."""


class SpeculativeConfig(Keys):
    """For `speculative_config`."""


class StructuredOutputsConfig(Keys):
    """For `structured_outputs_config`."""


class WeightTransferConfig(Keys):
    """For `weight_transfer_config`."""


ARGUMENTS = "its keys are arguments of their own here, such as LLM(max_num_seqs=8)"
VLLM_CONFIG = "there is no configuration of the whole process; plugins are given theirs"

NOT_SERVED: Mapping[str, str] = {
    "CUDAGraphMode": "write the mode's name, such as compilation_config={'cudagraph_mode': 'FULL'}",
    "CacheConfig": ARGUMENTS,
    "CompilationMode": "write the mode's number, such as compilation_config={'mode': 3}",
    "DeviceConfig": ARGUMENTS,
    "ECTransferConfig": "an instance does not exchange anything with others",
    "EPLBConfig": "experts are not spread over ranks",
    "KernelConfig": ARGUMENTS,
    "LoRAConfig": "LoRA adapters are not available",
    "LoadConfig": ARGUMENTS,
    "MambaConfig": "states are kept in float32, and nothing of them can be chosen",
    "ModelConfig": "the engine's configuration is core.api.config.EngineConfig",
    "MultiModalConfig": "requests carry text",
    "ObservabilityConfig": ARGUMENTS,
    "OffloadConfig": "all weights stay on the device",
    "PassConfig": "a single operation leaves nothing to rewrite",
    "ParallelConfig": "the engine runs on one rank",
    "SchedulerConfig": ARGUMENTS,
    "SpeechToTextConfig": "requests carry text",
    "SupportsHash": "a configuration is compared by `core config explain`",
    "get_current_vllm_config": VLLM_CONFIG,
    "get_layers_from_vllm_config": VLLM_CONFIG,
    "set_current_vllm_config": VLLM_CONFIG,
}
"""Names of vLLM's package that scripts import, and why they are not here."""
