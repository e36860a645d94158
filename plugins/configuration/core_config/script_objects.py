"""Objects with the keys of an argument, as scripts written for vLLM pass them: `LLM(pooler_config=PoolerConfig(...))`.

Owns: these classes, and the reasons why other classes of vLLM's `config` package are missing. Never does: check a key
(the reader of the argument does). Called by: `core_config`, when a script imports a name from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Keys(dict[str, Any]):
    """A mapping of the keys that a script gives, without defaults."""

    def __init__(self, **keys: Any) -> None:
        super().__init__(keys)


class AttentionConfig(Keys):
    """Keys of the argument `attention_config`."""


class CompilationConfig(Keys):
    """Keys of the argument `compilation_config`."""


class EPLBConfig(Keys):
    """Keys of the argument `eplb_config`."""


class KVEventsConfig(Keys):
    """Keys of the argument `kv_events_config`."""


class KVTransferConfig(Keys):
    """Keys of the argument `kv_transfer_config`."""


class MambaConfig(Keys):
    """Keys of the argument `mamba_config`."""


class PoolerConfig(Keys):
    """Keys of the argument `pooler_config`."""


class ProfilerConfig(Keys):
    """Keys of the argument `profiler_config`."""


class ReasoningConfig(Keys):
    """Keys of the argument `reasoning_config`."""


class SpeculativeConfig(Keys):
    """Keys of the argument `speculative_config`."""


class StructuredOutputsConfig(Keys):
    """Keys of the argument `structured_outputs_config`."""


class WeightTransferConfig(Keys):
    """Keys of the argument `weight_transfer_config`."""


ARGUMENTS = "its keys are arguments of their own here, such as LLM(max_num_seqs=8)"
VLLM_CONFIG = "there is no configuration of the whole process; plugins are given theirs"

NOT_SERVED: Mapping[str, str] = {
    "CUDAGraphMode": "write the mode's name, such as compilation_config={'cudagraph_mode': 'FULL'}",
    "CacheConfig": ARGUMENTS,
    "CompilationMode": "write the mode's number, such as compilation_config={'mode': 3}",
    "DeviceConfig": ARGUMENTS,
    "ECTransferConfig": "an instance does not exchange anything with others",
    "KernelConfig": ARGUMENTS,
    "LoRAConfig": ARGUMENTS,
    "LoadConfig": ARGUMENTS,
    "ModelConfig": "the engine's configuration is core.api.config.EngineConfig",
    "MultiModalConfig": ARGUMENTS,
    "ObservabilityConfig": ARGUMENTS,
    "OffloadConfig": "all weights stay on the device",
    "PassConfig": "a single operation leaves nothing to rewrite",
    "ParallelConfig": ARGUMENTS,
    "SchedulerConfig": ARGUMENTS,
    "SpeechToTextConfig": "each transcription has its settings in its request",
    "SupportsHash": "a configuration is compared by `core config explain`",
    "get_current_vllm_config": VLLM_CONFIG,
    "get_layers_from_vllm_config": VLLM_CONFIG,
    "set_current_vllm_config": VLLM_CONFIG,
}
"""Names of vLLM's package that scripts import → the reason why they are missing here."""
