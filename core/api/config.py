"""The resolved configuration of one engine: what every part is built from.

Owns: `EngineConfig`, the frozen Struct that goes, as one message, to the engine process; its larger parts are in files of their
own, and are taken from here. Never does: resolve or validate (`core_config` does).
Called by: config (writes), engine, scheduler, executor, serving (read).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from core.api.cache_config import CacheConfig, KVEventsConfig
from core.api.model_config import ModelConfig
from core.api.plugin_choices import PluginChoices, ResolvedPlugin
from core.api.scheduler_config import SchedulerConfig
from core.api.step_limits import StepLimits
from core.api.weights import WeightsState

__all__ = [
    "AcceptanceConfig",
    "AcceptanceMethod",
    "CacheConfig",
    "EngineConfig",
    "KVEventsConfig",
    "ModelConfig",
    "PluginChoices",
    "ProfilerConfig",
    "ResolvedPlugin",
    "RestartConfig",
    "SchedulerConfig",
    "StepLimits",
    "StructuredOutputsConfig",
    "WeightTransferConfig",
]


class StructuredOutputsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How grammars are compiled, for requests that do not say otherwise.

    backend: name of a grammar plugin, which comes first; None: the order of `PluginChoices.grammars`.
    disable_fallback: whether no other backend may take over.
    disable_any_whitespace: JSON without optional white space.
    disable_additional_properties: objects have the properties of their schema only, where it does not say.
    max_grammar_size: bytes of a schema, expression or grammar.
    max_compiled_size: bytes of what a backend makes of it.
    compile_timeout: seconds of one compilation.
    compile_memory: bytes that one compilation may take.
    cache_size: bytes of compiled grammars that are kept.
    warm: whether a process that compiles is there before the first grammar, and stays while it idles.
    """

    backend: str | None = None
    disable_fallback: bool = False
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    max_grammar_size: int = 1 << 20
    max_compiled_size: int = 32 << 20
    compile_timeout: float = 10.0
    compile_memory: int = 1 << 30
    cache_size: int = 64 << 20
    warm: bool = False


AcceptanceMethod = Literal["rejection", "typical", "synthetic"]


class AcceptanceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How drafts are accepted that the sampler would not have drawn (`core_runtime.sampling.acceptance`).

    threshold: of typical acceptance: a draft at least as likely is accepted, whatever the entropy.
    alpha:     of typical acceptance: of e^-entropy, above which a draft is accepted.
    rates:     of synthetic acceptance, by position: how often all drafts up to there are accepted.
    """

    method: AcceptanceMethod
    threshold: float = 0.09
    alpha: float = 0.3
    rates: tuple[float, ...] = ()


class CompilationConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What is recorded, and where compiled code is kept.

    sizes:     numbers of rows that are recorded, where a recording serves one number; None: the platform's.
    cache_dir: of torch's compiler; empty: its own.
    """

    sizes: tuple[int, ...] | None = None
    cache_dir: str = ""


class ProfilerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What torch's profiler records, and where it writes.

    directory: of the traces.
    """

    directory: str
    with_stack: bool = True
    with_flops: bool = False
    use_gzip: bool = True
    record_shapes: bool = False
    with_memory: bool = False


class WeightTransferConfig(msgspec.Struct, frozen=True, kw_only=True):
    """From where weights may be replaced over HTTP.

    backend:   `file`, `shared_memory` or `any`.
    directory: that checkpoints must lie below; None: anywhere.
    """

    backend: str = "any"
    directory: str | None = None


class RestartConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How an engine that died is started again.

    limit:     restarts within `window_s` seconds; one more death is final. 0: every death is.
    window_s:  see `limit`.
    backoff_s: seconds before the second restart in a row; each further one waits twice as long.
    standby:   whether a process that has imported everything waits for the next restart.
    """

    limit: int = 20
    window_s: float = 600.0
    backoff_s: float = 0.5
    standby: bool = False


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that an engine is built from.

    limits:            of the model's steps, as the memory plan settled them.
    device:            `cpu`, `cuda:0`, ...
    disable_log_stats: no periodic log line.
    stall_timeout_s:   seconds that the engine may be silent, while an answer is due, before it counts as unhealthy.
    wedge_timeout_s:   seconds that any step may last before the engine is killed as one that hangs; 0.0: it never is.
    utility_timeout_s: the same of a call that is known to take long, such as a sleep; 0.0: it may take any time.
    use_tqdm_on_load:  show progress while weights are loaded.
    safetensors_load_strategy: how safetensors files are read; None: as suits where they lie.
    keep_weights:      what an engine does with prepared weights that outlived the one before: `copy`, `map`; None: none do.
    weights_file:      the descriptor, in the engine process, of the file in memory that they are kept in; None: there is none.
    structured_outputs: limits and defaults of grammars.
    state_canary:      directory of what engines must agree with before their first request; None: nothing is compared.
    restarts:          what follows when the engine dies.
    acceptance:        of drafts; None: those that the sampler draws too.
    draft:             a `DraftConfig`, or its plain values where this came as a message: read it with
                       `core_runtime.specs.draft_config.draft_of`. None without a draft that the executor runs.
    compilation:       what is recorded and compiled, and how.
    profiler:          None: nothing can be profiled.
    log_steps:         whether each step is a line of log.
    log_config:        for `logging.config.dictConfig`, in the engine process; empty: our own.
    sleeps:            whether weights and cache may be given back for a while.
    weight_transfer:   None: weights are not replaced over HTTP.
    weights:           what was laid over the checkpoint before this engine started.
    lasting_file:      the descriptor, in the engine process, of the file that tells the next engine; None: there is none.
    tensors_file:      the same of the file in which tensors from memory are kept.
    processor_timeout_s: seconds that a call of a logits processor may take.
    """

    model: ModelConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    plugins: PluginChoices
    limits: StepLimits = StepLimits()
    device: str = "cpu"
    disable_log_stats: bool = False
    stall_timeout_s: float = 120.0
    wedge_timeout_s: float = 0.0
    utility_timeout_s: float = 1800.0
    use_tqdm_on_load: bool = True
    safetensors_load_strategy: str | None = None
    keep_weights: str | None = None
    weights_file: int | None = None
    structured_outputs: StructuredOutputsConfig = StructuredOutputsConfig()
    state_canary: str | None = None
    restarts: RestartConfig = RestartConfig()
    acceptance: AcceptanceConfig | None = None
    draft: Any = None
    compilation: CompilationConfig = CompilationConfig()
    profiler: ProfilerConfig | None = None
    log_steps: bool = False
    log_config: dict[str, Any] = {}
    sleeps: bool = False
    weight_transfer: WeightTransferConfig | None = None
    weights: WeightsState = WeightsState()
    lasting_file: int | None = None
    tensors_file: int | None = None
    processor_timeout_s: float = 5.0
