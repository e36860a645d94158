"""Arguments of older versions: those that still translate, and those that are gone.

Owns: `RETIRED`, one row an argument, and the sentences about them. Never does: convert values.
Called by: parser, sources, help, document.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Retired:
    """An argument that is not declared any more.

    switch: takes no value. target: the argument that a deprecated one is translated to; empty: it is removed.
    inverted: the translated value is the opposite. instead: what to write now; why: for one without replacement.
    """

    name: str
    group: str
    switch: bool = False
    target: str = ""
    inverted: bool = False
    instead: str = ""
    why: str = ""
    short: str = ""

    @property
    def status(self) -> str:
        """`deprecated` while it is translated, else `removed`."""
        return "deprecated" if self.target or self.name in _NO_EFFECT else "removed"

    @property
    def flag(self) -> str:
        """`--swap-space`."""
        return "--" + self.name.replace("_", "-")

    def sentence(self, shown: str) -> str:
        """What a user is told, `shown` being the argument as it was written."""
        way_out = f"use {self.instead}" if self.instead else f"{self.why}; leave it out"
        return f"{shown}: {self.status}; {way_out}."


_NO_EFFECT = frozenset({"calculate_kv_scales"})
_SPEC = "--speculative-config."
_STEPS = "a step is planned once"
_PROMPT_ADAPTERS = "prompt adapters do not exist any more"
_POOL = "--renderer-num-workers"


def _spec(name: str, key: str, short: str = "") -> Retired:
    return Retired(name, "speculative", instead=_SPEC + key, short=short)


RETIRED: tuple[Retired, ...] = (
    Retired(
        "disable_log_requests",
        "async_engine",
        switch=True,
        target="enable_log_requests",
        inverted=True,
        instead="--no-enable-log-requests",
    ),
    Retired(
        "dcp_kv_cache_interleave_size",
        "parallel",
        target="cp_kv_cache_interleave_size",
        instead="--cp-kv-cache-interleave-size",
    ),
    Retired("calculate_kv_scales", "cache", switch=True, why="scales of a KV cache come from the checkpoint"),
    Retired("quantization_param_path", "cache", why="scales of a KV cache come from the checkpoint"),
    Retired("swap_space", "cache", instead="--kv-offloading-size, which is closest: preempted requests are recomputed"),
    Retired("use_v2_block_manager", "cache", switch=True, why="there is one block manager"),
    Retired("enable_lora_bias", "lora", switch=True, why="adapters have no bias terms"),
    Retired("enable_prompt_adapter", "lora", switch=True, why=_PROMPT_ADAPTERS),
    Retired("max_prompt_adapters", "lora", why=_PROMPT_ADAPTERS),
    Retired("max_prompt_adapter_token", "lora", why=_PROMPT_ADAPTERS),
    Retired("long_lora_scaling_factors", "lora", why="adapters do not change the context length"),
    Retired("lora_extra_vocab_size", "lora", why="adapters do not add vocabulary"),
    Retired("qlora_adapter_name_or_path", "load", instead="--enable-lora over a quantized model"),
    Retired("disable_async_output_proc", "model", switch=True, instead="--no-async-scheduling, which is closest"),
    Retired("logits_processor_pattern", "model", instead="--logits-processors"),
    Retired("max_context_len_to_capture", "model", instead="--max-cudagraph-capture-size, which counts batch tokens"),
    Retired("max_seq_len_to_capture", "model", instead="--max-cudagraph-capture-size, which counts batch tokens"),
    Retired("override_neuron_config", "model", instead="--platform-config"),
    Retired("override_pooler_config", "model", instead="--pooler-config"),
    Retired("rope_scaling", "model", instead="--hf-overrides.rope_scaling.KEY VALUE"),
    Retired("rope_theta", "model", instead="--hf-overrides.rope_theta VALUE"),
    Retired("task", "model", instead="--runner and --convert"),
    Retired("tokenizer_pool_extra_config", "model", instead=_POOL),
    Retired("tokenizer_pool_size", "model", instead=_POOL),
    Retired("tokenizer_pool_type", "model", instead=_POOL),
    Retired("disable_mm_preprocessor_cache", "multimodal", switch=True, instead="--mm-processor-cache-gb 0"),
    Retired("enable_multimodal_encoder_data_parallel", "parallel", switch=True, instead="--mm-encoder-tp-mode data"),
    Retired("eplb_log_balancedness", "parallel", switch=True, instead="--eplb-config.log_balancedness true"),
    Retired("eplb_step_interval", "parallel", instead="--eplb-config.step_interval"),
    Retired("eplb_window_size", "parallel", instead="--eplb-config.window_size"),
    Retired("num_redundant_experts", "parallel", instead="--eplb-config.num_redundant_experts"),
    Retired("worker_use_ray", "parallel", switch=True, instead="--distributed-executor-backend ray"),
    Retired("cuda_graph_sizes", "scheduler", instead="--cudagraph-capture-sizes or --max-cudagraph-capture-size"),
    Retired("multi_step_stream_outputs", "scheduler", switch=True, why=_STEPS),
    Retired("num_scheduler_steps", "scheduler", why=_STEPS),
    Retired("num_lookahead_slots", "scheduler", instead=_SPEC + "num_speculative_tokens"),
    Retired("preemption_mode", "scheduler", why="preempted requests are recomputed"),
    Retired("scheduler_delay_factor", "scheduler", why="prompts never wait on purpose"),
    _spec("disable_logprobs_during_spec_decoding", "disable_logprobs"),
    _spec("ngram_prompt_lookup_max", "prompt_lookup_max"),
    _spec("ngram_prompt_lookup_min", "prompt_lookup_min"),
    _spec("num_speculative_tokens", "num_speculative_tokens"),
    _spec("spec_decoding_acceptance_method", "acceptance_method"),
    _spec("speculative_disable_by_batch_size", "disable_by_batch_size"),
    Retired("speculative_disable_mqa_scorer", "speculative", switch=True, why="drafts are checked in one batch"),
    _spec("speculative_draft_tensor_parallel_size", "draft_tensor_parallel_size", short="spec-draft-tp"),
    _spec("speculative_max_model_len", "max_model_len"),
    _spec("speculative_model", "model"),
    _spec("speculative_model_quantization", "quantization"),
    _spec("typical_acceptance_sampler_posterior_alpha", "posterior_alpha"),
    _spec("typical_acceptance_sampler_posterior_threshold", "posterior_threshold"),
    Retired("guided_decoding_backend", "structured_outputs", instead="--structured-outputs-config.backend"),
    Retired(
        "guided_decoding_disable_additional_properties",
        "structured_outputs",
        switch=True,
        instead="--structured-outputs-config.disable_additional_properties true",
    ),
    Retired(
        "guided_decoding_disable_any_whitespace",
        "structured_outputs",
        switch=True,
        instead="--structured-outputs-config.disable_any_whitespace true",
    ),
    Retired(
        "guided_decoding_disable_fallback",
        "structured_outputs",
        switch=True,
        instead="--structured-outputs-config.disable_fallback true",
    ),
)
