"""The settled arguments as the Structs that an engine is built from.

Owns: the construction of `EngineConfig`. Never does: derive a value that a rule could. Called by: resolve.
"""

from __future__ import annotations

from typing import Any

import msgspec

from core.api.config import (
    CacheConfig,
    EngineConfig,
    KVEventsConfig,
    ModelConfig,
    PluginChoices,
    RestartConfig,
    SchedulerConfig,
)
from core.api.pooling import PoolingConfig
from core.plugin.distributions import is_own
from core.plugin.registry import PluginRegistry
from core_config.adapters import adapters_config
from core_config.audit import audit_settings
from core_config.compilation import compilation_config
from core_config.generation import eos_token_ids, generation_defaults, override_name
from core_config.group_size import engines_at_start
from core_config.media import media_config
from core_config.plugin_choices import plugin_choices
from core_config.profiler import profiler_config
from core_config.rules.data_parallel import first_rank, num_engines
from core_config.rules.prefixes import snapshot_every
from core_config.served.log_file import log_config
from core_config.speculation.acceptance import acceptance_config
from core_config.speculation.control import draft_settings
from core_config.speculation.model import Draft
from core_config.stages.attention import settled_state_dtype
from core_config.stages.checkpoint import Checkpoint, find_tokenizer
from core_config.stages.chosen import Chosen
from core_config.stages.kv_connectors import publishes_events
from core_config.stages.memory import MemoryPlan
from core_config.stages.settings import Settings, underscored
from core_config.structured_outputs import structured_outputs_config
from core_config.told import TOLD
from core_config.weight_transfer import weight_transfer_config
from core_runtime.specs.module_spec import ModelSpec, ModuleSpec
from core_runtime.specs.weight_offload import WEIGHT_OFFLOAD

GIB = 1 << 30
TORCHAO = "torchao"
"""Name of a method, and of the strategy that other engines read its files with; here they are read as all others."""
NO_PLAN = MemoryPlan(weights=0, block=0, num_blocks=0, block_size=0, groups=())


def engine_config(
    settings: Settings,
    registry: PluginRegistry,
    checkpoint: Checkpoint,
    spec: ModelSpec,
    chosen: Chosen,
    plan: MemoryPlan | None,
    draft: Draft | None,
    problems: list[str],
    *,
    pooling: PoolingConfig | None = None,
) -> EngineConfig:
    """Build the config. Problems of plugins' arguments are added to `problems`. Raises UserError.

    spec: the model's shape, from its family.
    plan: None when sizes could not be settled; the other fields are still checked.
    draft: the draft that the core runs for the proposer, or None.
    pooling: how hidden states become the answer; None: the model generates text.
    """
    plan = plan or NO_PLAN
    strategy = settings["safetensors_load_strategy"]
    plugins = _with_offload(plugin_choices(settings, registry, chosen, problems), plan)
    if settings["shared_limits"] is not None and chosen.name("policy") == "fair":
        plugins = _with_arguments(plugins, "policy.fair", {"shared_limits": settings["shared_limits"]})
    model = msgspec.structs.replace(
        _model(settings, checkpoint, spec, plugins, registry),
        pooling=pooling,
        embedding_size=_embedding_size(settings, spec, pooling, problems),
    )
    return EngineConfig(
        model=model,
        cache=_cache(settings, plan),
        scheduler=scheduler_config(settings, chosen.name("policy")),
        plugins=plugins,
        limits=plan.limits,
        device=settings["device"],
        disable_log_stats=settings["disable_log_stats"],
        stall_timeout_s=settings["engine_stall_timeout"],
        # Where a death is final, an engine that hangs may still recover.
        wedge_timeout_s=settings["engine_wedge_timeout"] if settings["engine_restarts"] else 0.0,
        utility_timeout_s=settings["engine_utility_timeout"],
        use_tqdm_on_load=settings["use_tqdm_on_load"],
        safetensors_load_strategy=None if strategy == TORCHAO else strategy,
        keep_weights=settings["keep_weights"] if settings["engine_restarts"] else None,
        prepared_weights=settings["prepared_weights"],
        structured_outputs=structured_outputs_config(settings),
        state_canary=settings["state_canary"],
        restarts=_restarts(settings),
        acceptance=None if problems else acceptance_config(settings.mapping("speculative_config")),
        draft=None if draft is None else draft.config(registry, model, plan.draft_limits, problems),
        compilation=compilation_config(settings),
        profiler=profiler_config(settings["profiler_config"], problems),
        log_steps=settings["enable_logging_iteration_details"],
        audit=audit_settings(settings, problems),
        log_config=log_config(settings["log_config_file"], settings["log_level"]),
        processor_timeout_s=settings["logits_processor_timeout"],
        sleeps=settings["enable_sleep_mode"],
        weight_transfer=weight_transfer_config(settings["weight_transfer_config"], problems),
        adapters=adapters_config(settings),
        data_parallel_size=num_engines(settings),
        data_parallel_rank=first_rank(settings),
        data_parallel_started=engines_at_start(settings),
        aggregate_stats_log=settings["aggregate_engine_logging"],
        media=media_config(settings, checkpoint.path, checkpoint.manifest, plugins, pooling),
    )


def _with_offload(plugins: PluginChoices, plan: MemoryPlan) -> PluginChoices:
    """Return the choices with the weights that lie in host memory, if any do."""
    if plan.offload is None:
        return plugins
    return _with_arguments(plugins, WEIGHT_OFFLOAD, msgspec.to_builtins(plan.offload))


def _with_arguments(plugins: PluginChoices, name: str, arguments: dict[str, Any]) -> PluginChoices:
    """Return the choices with the arguments of one plugin."""
    return msgspec.structs.replace(plugins, arguments={**plugins.arguments, name: arguments})


def _model(
    settings: Settings, checkpoint: Checkpoint, spec: ModelSpec, plugins: PluginChoices, registry: PluginRegistry
) -> ModelConfig:
    """Return the model's part, without what depends on pooling."""
    served = tuple(settings["served_model_name"] or (checkpoint.served_as,))
    settings.derive("served_model_name", list(served), "the model as given")
    manifest = checkpoint.manifest
    generation = generation_defaults(manifest, settings["generation_config"], settings["override_generation_config"])
    return ModelConfig(
        model=checkpoint.path,
        served_names=served,
        tokenizer=find_tokenizer(settings),
        tokenizer_mode=settings["tokenizer_mode"],
        skip_tokenizer=settings["skip_tokenizer_init"],
        allow_control_tokens=settings["allow_control_tokens_in_content"],
        dtype=settings["dtype"],
        max_model_len=settings["max_model_len"] or 0,
        vocab_size=spec.vocab_size,
        hf_config=manifest.config,
        max_logprobs=settings["max_logprobs"],
        logprobs_mode=settings["logprobs_mode"],
        tells=tuple(name for flag, name in TOLD.items() if settings[flag]),
        seed=settings["seed"],
        eos_token_ids=eos_token_ids(manifest, generation),
        generation=generation,
        overridden=tuple(override_name(key) for key in settings["override_generation_config"]),
        enforce_eager=settings["enforce_eager"],
        implementation="transformers" if isinstance(spec, ModuleSpec) else "core",
        trust_remote_code=settings["trust_remote_code"],
        numerics=settings["numerics"],
        reads_extra_args=_reads_extra_args(plugins, registry),
        checks_params=bool(plugins.logits_processors),
    )


def _restarts(settings: Settings) -> RestartConfig:
    limit = settings["engine_restarts"]
    return RestartConfig(
        limit=limit,
        window_s=settings["engine_restart_window"],
        backoff_s=settings["engine_restart_backoff"],
        standby=settings["standby_engine"] and limit > 0,
    )


def _embedding_size(settings: Settings, spec: ModelSpec, pooling: PoolingConfig | None, problems: list[str]) -> int:
    """Return the size of an embedding that a prompt may contain; 0 where prompts contain none."""
    if not settings["enable_prompt_embeds"]:
        return 0
    reason = ""
    if pooling is not None:
        reason = "a model whose vectors are pooled takes text or token ids; leave it out"
    elif isinstance(spec, ModuleSpec):
        reason = "the layers of transformers take token ids; leave it out"
    elif spec.embed_scale != 1.0 or spec.embed_size is not None:
        reason = "this model scales or projects its embeddings, so they have no one form; leave it out"
    if reason or isinstance(spec, ModuleSpec):
        problems.append(f"--enable-prompt-embeds: {reason}.")
        return 0
    return spec.hidden_size


def _reads_extra_args(plugins: PluginChoices, registry: PluginRegistry) -> bool:
    """Whether requests may have arguments for plugins: for a logits processor, a proposer that declares it, or a policy
    that is not the engine's own.
    """
    if plugins.speculative is not None:
        proposer = registry.find("speculative", plugins.speculative)
        if proposer is not None and proposer.spec.capabilities.get("reads_extra_args"):
            return True
    foreign_policies = [row for row in plugins.table if row.kind == "policy" and not is_own(row.distribution)]
    return bool(plugins.logits_processors or foreign_policies)


def _cache(settings: Settings, plan: MemoryPlan) -> CacheConfig:
    return CacheConfig(
        block_size=settings["block_size"],
        dtype=settings["kv_cache_dtype"],
        layer_dtypes=plan.layer_dtypes,
        state_dtype=settled_state_dtype(settings),
        # Stages hold unequal parts of a block, so the number that all of them have room for is settled here.
        num_blocks=plan.num_blocks if settings["pipeline_parallel_size"] > 1 else settings["num_gpu_blocks_override"],
        memory_bytes=plan.kv,
        enable_prefix_caching=settings["enable_prefix_caching"],
        hash_algorithm=settings["prefix_caching_hash_algo"],
        groups=plan.groups,
        snapshot_interval=settings["mamba_block_size"],
        snapshot_every=snapshot_every(settings),
        eviction=settings["kv_eviction"],
        share_per_key=settings["kv_share_per_key"],
        host_bytes=int((settings["kv_offloading_size"] or 0) * GIB),
        disk_path=settings["kv_offloading_disk_path"],
        disk_bytes=int(settings["kv_offloading_disk_size"] * GIB),
        events=_events(settings),
        metrics_sample=settings["kv_cache_metrics_sample"] if settings["kv_cache_metrics"] else 0.0,
        explains=settings["explain_answers"],
    )


def _events(settings: Settings) -> KVEventsConfig | None:
    """Return the config of KV events, None when they are off."""
    if not publishes_events(settings):
        return None
    keys = underscored(settings["kv_events_config"])
    for name in ("enable_kv_cache_events", "publisher"):
        keys.pop(name, None)
    return KVEventsConfig(**keys)


def scheduler_config(settings: Settings, policy: str | None = None) -> SchedulerConfig:
    """Return limits and policy of the scheduler. policy: name of the chosen plugin."""
    speculation = settings.mapping("speculative_config")
    return SchedulerConfig(
        max_num_seqs=settings["max_num_seqs"],
        max_num_batched_tokens=settings["max_num_batched_tokens"],
        max_model_len=settings["max_model_len"] or 0,
        enable_chunked_prefill=settings["enable_chunked_prefill"],
        max_num_mixed_batched_tokens=settings["max_num_mixed_batched_tokens"] or 0,
        queued_prompts_weight=settings["queued_prompts_weight"],
        long_prefill_token_threshold=settings["long_prefill_token_threshold"],
        max_num_partial_prefills=settings["max_num_partial_prefills"],
        max_long_partial_prefills=settings["max_long_partial_prefills"],
        reserve_full_prompt=settings["scheduler_reserve_full_isl"],
        async_scheduling=bool(settings["async_scheduling"]),
        stream_interval=settings["stream_interval"],
        max_num_queued_reqs=settings["max_num_queued_reqs"],
        max_num_queued_tokens=settings["max_num_queued_tokens"],
        request_timeout_s=settings["request_timeout"] or 0.0,
        policy=policy or settings["scheduling_policy"],
        max_num_reqs_per_key=settings["max_num_reqs_per_key"],
        max_num_queued_reqs_per_key=settings["max_num_queued_reqs_per_key"],
        max_num_queued_tokens_per_key=settings["max_num_queued_tokens_per_key"],
        max_stall_s=(settings["max_stall_ms"] or 0.0) / 1000.0,
        max_adapters=settings["max_loras"] if settings["enable_lora"] else 0,
        **draft_settings(speculation),
    )
