"""Which arguments mean something to whom: to a server only, to an engine in a process of its own, to a front or its engine.

Owns: these lists. Never does: declare an argument. Called by: `EngineArgs`, the rules of the configuration, and front and
engine when they meet.
"""

from __future__ import annotations

from core.args.schema import Field, schema

NOT_OF_SERVERS = frozenset({"config", "chat_template"})
"""Arguments of these groups that mean something to all."""

OF_KEYS = frozenset({"max_num_reqs_per_key", "max_num_queued_reqs_per_key", "max_num_queued_tokens_per_key"})
"""Arguments about API keys in other groups."""

OF_QUEUES = frozenset({"max_num_queued_reqs", "max_num_queued_tokens", "request_timeout"})
"""Arguments of an engine whose requests come from others and wait: in a process of its own, as `AsyncLLM` and a server have it.
Whoever calls `LLM` waits for it."""

OF_FRONTS = (
    OF_KEYS
    | OF_QUEUES
    | {
        "served_model_name",
        "allow_control_tokens_in_content",
        "generation_config",
        "override_generation_config",
        "stream_interval",
        "enable_log_requests",
        "max_log_len",
        "disable_log_stats",
        "engine_stall_timeout",
        "vllm_metrics",
        "otlp_traces_endpoint",
        "collect_detailed_traces",
        "structured_outputs_config",
        "guided_decoding_backend",
        "guided_decoding_disable_fallback",
        "guided_decoding_disable_any_whitespace",
        "guided_decoding_disable_additional_properties",
    }
)
"""Arguments of other groups that a front goes by, and its engine does not."""

OF_EACH = frozenset({
    "config", "model", "tokenizer", "revision", "tokenizer_revision", "hf_token", "hf_endpoint", "download_dir",
    "log_config_file", "plugins", "shutdown_timeout",
})  # fmt: skip
"""Arguments that front and engine have each for themselves: where files are, and how either ends."""


IN_ENGINE_ARGS = frozenset({"data_parallel_size_local", "data_parallel_address", "data_parallel_rpc_port"})
"""Arguments of servers that scripts written for vLLM leave open in the arguments of an engine."""


def means_nothing_to_llm(field: Field) -> bool:
    """Whether an engine in the caller's own process has no use for the argument."""
    return is_for_servers(field) or field.name in OF_QUEUES


def is_for_servers(field: Field) -> bool:
    """Whether only an HTTP server looks at the argument."""
    if field.name in OF_KEYS:
        return True
    return field.group in schema().server_groups and field.name not in NOT_OF_SERVERS


def is_for_fronts(field: Field) -> bool:
    """Whether of a front and its engine only the front looks at the argument."""
    if field.name in OF_EACH or field.group == "remote":
        return False
    if field.name in OF_FRONTS or field.group == "answers":
        return True
    return field.name == "chat_template" or is_for_servers(field)


def is_for_engines(field: Field) -> bool:
    """Whether the value that the engine has counts, so that the front can only repeat it."""
    return field.name not in OF_EACH and field.group != "remote" and not is_for_fronts(field)
