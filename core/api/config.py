"""The resolved configuration of one engine, from which every part is built.

Owns: `EngineConfig`, the frozen Struct that is sent to the engine process as one message. Its larger parts are defined in files
of their own and imported from here. Never does: resolve or validate (`core_config` does).
Called by: config (writes), engine, scheduler, executor, serving (read).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from core.api.adapters import AdaptersConfig
from core.api.cache_config import CacheConfig, KVEventsConfig
from core.api.model_config import ModelConfig
from core.api.plugin_choices import PluginChoices, ResolvedPlugin
from core.api.scheduler_config import SchedulerConfig
from core.api.step_limits import StepLimits
from core.api.weights import WeightsState

__all__ = [
    "AcceptanceConfig", "AcceptanceMethod", "CacheConfig", "EngineConfig", "KVEventsConfig", "ModelConfig",
    "PluginChoices", "ProfilerConfig", "ResolvedPlugin", "RestartConfig", "SchedulerConfig", "StepLimits",
    "StructuredOutputsConfig", "WeightTransferConfig",
]  # fmt: skip


class StructuredOutputsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and defaults of grammar compilation, for requests that do not set their own.

    backend: name of the grammar plugin that is tried first; None: the order of `PluginChoices.grammars`.
    disable_fallback: whether no other backend may take over.
    disable_any_whitespace: JSON without optional white space.
    disable_additional_properties: objects have only the properties of their schema, where the schema does not say.
    max_grammar_size: maximum bytes of a schema, expression or grammar.
    max_compiled_size: maximum bytes of a compiled grammar.
    compile_timeout: seconds that one compilation may take.
    compile_memory: bytes of memory that one compilation may use.
    cache_size: bytes of compiled grammars that are kept.
    warm: whether the compiling process is started before the first grammar, and kept while it idles.
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
    """The rule by which drafts are accepted that the sampler would not have drawn (`core_runtime.sampling.drafts.acceptance`).

    threshold: typical acceptance: a draft above this probability is accepted, whatever the entropy.
    alpha:     typical acceptance: a draft is accepted when its probability exceeds alpha * e^-entropy.
    rates:     synthetic acceptance: by position, the rate at which all drafts up to that position are accepted.
    """

    method: AcceptanceMethod
    threshold: float = 0.09
    alpha: float = 0.3
    rates: tuple[float, ...] = ()


class CompilationConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The recording of steps (device graphs), and the place of compiled code.

    sizes:     batch sizes in rows for which steps are recorded, where a recording serves one size; None: the platform's.
    mixed:     whether steps with prompts are recorded too.
    cache_dir: cache directory of torch's compiler; empty: torch's default.
    """

    sizes: tuple[int, ...] | None = None
    mixed: bool = True
    cache_dir: str = ""


class ProfilerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of torch's profiler. directory: directory to which traces are written."""

    directory: str
    with_stack: bool = True
    with_flops: bool = False
    use_gzip: bool = True
    record_shapes: bool = False
    with_memory: bool = False


class WeightTransferConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The sources from which weights may be replaced over HTTP.

    backend:   `file`, `shared_memory` or `any`.
    directory: directory below which checkpoints must lie; None: anywhere.
    """

    backend: str = "any"
    directory: str | None = None


class RestartConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The restart policy for an engine that died.

    limit:     restarts allowed within `window_s` seconds; one more death is final. 0: every death is final.
    window_s:  length of the window of `limit`, in seconds.
    backoff_s: seconds before the second restart in a row; each further one waits twice as long.
    standby:   whether a process that has already imported everything is kept ready for the next restart.
    """

    limit: int = 20
    window_s: float = 600.0
    backoff_s: float = 0.5
    standby: bool = False


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The complete, immutable configuration of one engine.

    limits:            limits of the model's steps, as the memory plan computed them.
    device:            `cpu`, `cuda:0`, ...
    disable_log_stats: no periodic log line.
    stall_timeout_s:   seconds that the engine may be silent, while an answer is due, before it counts as unhealthy.
    wedge_timeout_s:   seconds that any step may last before the engine is killed as hanging; 0.0: it never is.
    utility_timeout_s: `wedge_timeout_s` for a call that is known to take long, such as a sleep; 0.0: no limit.
    use_tqdm_on_load:  show progress while weights are loaded.
    safetensors_load_strategy: how safetensors files are read; None: as suits the storage they lie on.
    keep_weights:      how an engine uses prepared weights that outlived the previous engine: `copy`, `map`; None: none do.
    prepared_weights:  directory of prepared weights for later starts; None: none are stored.
    weights_file, kv_file: descriptors, in the engine process, of memory files with kept weights and KV blocks; None: none.
    structured_outputs: limits and defaults of grammars.
    state_canary:      directory of the records that engines must match before their first request; None: no check.
    restarts:          restart policy for an engine that dies.
    acceptance:        rule of acceptance of drafts; None: only drafts that the sampler draws too.
    draft:             a `DraftConfig`, or its plain values when the configuration came as a message: read it with
                       `core_runtime.specs.draft_config.draft_of`. None without a draft that the executor runs.
    compilation:       recording and compilation of steps.
    profiler:          settings of the profiler; None: the engine cannot be profiled.
    log_steps:         whether each step is logged. audit: see `core_observers.engine.audit.settings`; empty: none.
    log_config:        argument of `logging.config.dictConfig` in the engine process; empty: our own logging.
    sleeps:            whether the engine can sleep: release weights and cache for a while.
    weight_transfer:   replacement of weights over HTTP; None: it is disabled.
    weights:           updates that were applied to the checkpoint before this engine started.
    lasting_file:      descriptor, in the engine process, of the file with the state that the next engine inherits; None: none.
    tensors_file:      descriptor, in the engine process, of the file with tensors received from memory; None: there is none.
    processor_timeout_s: seconds that a call of a logits processor may take.
    adapters:          limits of adapters; None: there are none.
    data_parallel_size: engines of the group that this is a configuration of. data_parallel_rank: of the first one, or this one.
    data_parallel_started: engines of it that run at the start; the others when the server is scaled; 0: all run.
    aggregate_stats_log: one periodic log line for all engines of a group.
    media:             a `MediaConfig`, or its plain values as of `draft`; None: prompts carry text.
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
    prepared_weights: str | None = None
    weights_file: int | None = None
    kv_file: int | None = None
    structured_outputs: StructuredOutputsConfig = StructuredOutputsConfig()
    state_canary: str | None = None
    restarts: RestartConfig = RestartConfig()
    acceptance: AcceptanceConfig | None = None
    draft: Any = None
    compilation: CompilationConfig = CompilationConfig()
    profiler: ProfilerConfig | None = None
    log_steps: bool = False
    audit: dict[str, Any] = {}
    log_config: dict[str, Any] = {}
    sleeps: bool = False
    weight_transfer: WeightTransferConfig | None = None
    weights: WeightsState = WeightsState()
    lasting_file: int | None = None
    tensors_file: int | None = None
    processor_timeout_s: float = 5.0
    adapters: AdaptersConfig | None = None
    data_parallel_size: int = 1
    data_parallel_rank: int = 0
    data_parallel_started: int = 0
    aggregate_stats_log: bool = False
    media: Any = None
