"""The reach of each argument: servers only, engines in a process of their own, API servers, or engine servers.

Owns: these lists. Never does: declare an argument. Called by: `EngineArgs`, the rules of the configuration, and API server
and engine server when they connect.

An API server without an engine answers HTTP requests with the engine of another command.
"""

from __future__ import annotations

from core.args.schema import Field, schema

NOT_OF_SERVERS = frozenset({"config", "chat_template", "engine_key_file", "engine_connect_timeout"})
"""Exceptions in these groups: arguments that every process reads."""

OF_KEYS = frozenset({"max_num_reqs_per_key", "max_num_queued_reqs_per_key", "max_num_queued_tokens_per_key"})
"""Arguments about API keys that are declared in other groups."""

OF_QUEUES = frozenset({"max_num_queued_reqs", "max_num_queued_tokens", "request_timeout"})
"""Arguments about queued requests. They apply to an engine in a process of its own, as `AsyncLLM` and a server have it, and not
to `LLM`, whose caller waits for the answers."""

OF_API_SERVERS = (
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
        "show_hidden_metrics_for_version",
        "enable_mfu_metrics",
        "otlp_traces_endpoint",
        "collect_detailed_traces",
        "structured_outputs_config",
        "guided_decoding_backend",
        "guided_decoding_disable_fallback",
        "guided_decoding_disable_any_whitespace",
        "guided_decoding_disable_additional_properties",
    }
)
"""Arguments of other groups that the API server reads, and its engine server does not."""

OF_EACH = frozenset({
    "config", "model", "tokenizer", "revision", "tokenizer_revision", "hf_token", "hf_endpoint", "download_dir",
    "log_config_file", "log_level", "fail_on_environ_validation", "plugins", "shutdown_timeout",
})  # fmt: skip
"""Arguments that the API server and the engine server each set for themselves: locations of files, and their shutdown."""


IN_ENGINE_ARGS = frozenset({"data_parallel_size_local", "data_parallel_address", "data_parallel_rpc_port"})
"""Server arguments that are fields of `EngineArgs` nevertheless, since scripts written for vLLM pass them there, unset."""


def means_nothing_to_llm(field: Field) -> bool:
    """Whether the argument has no effect on an engine in the caller's own process."""
    return is_for_servers(field) or field.name in OF_QUEUES


def is_for_servers(field: Field) -> bool:
    """Whether only an HTTP server reads the argument."""
    if field.name in OF_KEYS:
        return True
    return field.group in schema().server_groups and field.name not in NOT_OF_SERVERS


def is_for_api_servers(field: Field) -> bool:
    """Whether the API server reads the argument and its engine server does not."""
    if field.name in OF_EACH or field.group == "remote":
        return False
    if field.name in OF_API_SERVERS or field.group == "answers":
        return True
    return field.name == "chat_template" or is_for_servers(field)


def is_for_engines(field: Field) -> bool:
    """Whether the engine server's value applies, so that the API server must have the same or none."""
    return field.name not in OF_EACH and field.group != "remote" and not is_for_api_servers(field)
