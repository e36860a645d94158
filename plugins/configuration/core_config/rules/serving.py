"""Rules about the server, its log and its metrics.

Owns: those rules and their order. Called by: the table (`core_config.rules`).
"""

from __future__ import annotations

from core.args.schema import flag_of, schema
from core_config.arguments.reach import means_nothing_to_llm
from core_config.rules.rule import Facts, Findings, Problem, Rule, Warn
from core_observers.hidden_names import hidden_since, version_of

OF_SEVERAL_MODELS = ("models", "model_budget", "model_turn", "model_idle_timeout")
OF_RESTARTS = (
    "engine_restart_window",
    "engine_restart_backoff",
    "engine_wedge_timeout",
    "standby_engine",
    "keep_weights",
    "keep_kv",
)
"""Arguments that only matter when an engine is restarted after its death."""


def log_length_needs_the_log(facts: Facts) -> Findings:
    """A limit on logged prompts has an effect only with the log of requests."""
    if not facts["enable_log_requests"] and facts.given("max_log_len"):
        yield Warn("--max-log-len has no effect without --enable-log-requests.")


def foreign_api_key_protects_nothing(facts: Facts) -> Findings:
    """The API key variable of another engine looks like protection, but is not read."""
    if facts.context != "llm" and not facts.is_headless and not facts["api_key"] and facts.environ.get("VLLM_API_KEY"):
        yield Warn("VLLM_API_KEY is not read, so this server requires no key; set CORE_API_KEY, or give --api-key.")


def limits_of_keys_need_keys(facts: Facts) -> Findings:
    """Limits per key need keys, since without keys clients cannot be distinguished."""
    limits = ("max_num_reqs_per_key", "max_num_queued_reqs_per_key", "max_num_queued_tokens_per_key")
    given = [flag_of(name) for name in limits if facts[name]]
    if facts.context == "serve" and given and not facts["api_key"]:
        yield Problem(f"{given[0]}: this server requires no key; give --api-key too, or leave it out.")


def shared_limits_are_of_one_process(facts: Facts) -> Findings:
    """Several API processes divide each limit, so what the others count is in it already."""
    if facts.context == "serve" and facts["shared_limits"] is not None and facts["api_server_count"] > 1:
        yield Problem(
            f"--shared-limits: not with --api-server-count {facts['api_server_count']}, whose processes divide each limit; "
            "leave one of them out."
        )


def public_prompts_need_keys(facts: Facts) -> Findings:
    """Without keys every cached prefix is shared by all clients."""
    if facts.context == "serve" and facts["public_prompt"] and not facts["api_key"]:
        yield Warn("--public-prompt has no effect without --api-key: all clients share all cached prefixes.")


def shares_need_keys(facts: Facts) -> Findings:
    """Without keys no request has a tenant, so that no cached block counts in a share."""
    if facts["kv_share_per_key"] < 1 and not facts.is_headless and not facts["api_key"]:
        yield Warn("--kv-share-per-key has no effect without --api-key: all clients share all cached prefixes.")


def samples_are_of_metrics(facts: Facts) -> Findings:
    """The sampled share of blocks has an effect only with the metrics of the KV cache."""
    if facts.given("kv_cache_metrics_sample") and not facts["kv_cache_metrics"]:
        yield Warn("--kv-cache-metrics-sample has no effect without --kv-cache-metrics.")


def cache_metrics_need_statistics(facts: Facts) -> Findings:
    """The metrics of the KV cache are part of the statistics."""
    if facts["kv_cache_metrics"] and facts["disable_log_stats"]:
        yield Problem("--kv-cache-metrics: needs the statistics; leave --disable-log-stats out.")


def restarts_serve_servers(facts: Facts) -> Findings:
    """Only a server's engine is restarted, and only when restarts are allowed."""
    given = [flag_of(name) for name in OF_RESTARTS if facts.given(name)]
    if facts.context == "llm" and facts.given("engine_restarts"):
        given.append(flag_of("engine_restarts"))
    if not given:
        return
    if facts.context == "llm":
        yield Warn(f"{', '.join(given)}: no effect here: the engine of LLM is in this process, and dies with it.")
    elif facts["engine_restarts"] == 0:
        yield Warn(f"{', '.join(given)}: no effect with --engine-restarts 0.")


def uds_replaces_host_and_port(facts: Facts) -> Findings:
    """A server listens on one address."""
    given = [flag_of(name) for name in ("host", "port") if facts.given(name)]
    if facts["uds"] and given:
        yield Problem(f"--uds: the server listens there and nowhere else; leave {' and '.join(given)} out.")


def one_resolution_is_of_one_model(facts: Facts) -> Findings:
    """Several models are `core serve`'s, which resolves each by itself."""
    given = [flag_of(name) for name in OF_SEVERAL_MODELS if facts.given(name)]
    if given and facts.context != "llm":
        yield Problem(f"{', '.join(given)}: only `core serve` reads this; leave it out, and name one model.")


def details_need_traces(facts: Facts) -> Findings:
    """Detailed traces need an endpoint for traces."""
    if facts["collect_detailed_traces"] and not facts["otlp_traces_endpoint"]:
        yield Problem("--collect-detailed-traces: say where traces go; give --otlp-traces-endpoint.")


def a_fingerprint_of_ones_own_has_a_value(facts: Facts) -> Findings:
    """The value of a fingerprint and the mode that shows it need each other."""
    is_custom, has_value = facts["fingerprint_mode"] == "custom", facts["fingerprint_value"] is not None
    if is_custom and not has_value:
        yield Problem("--fingerprint-mode custom: say what answers carry; give --fingerprint-value.")
    if has_value and not is_custom:
        yield Problem("--fingerprint-value: needs --fingerprint-mode custom; give it, or leave the value out.")


def a_log_file_has_levels_of_its_own(facts: Facts) -> Findings:
    """A configuration of logging says the level of each logger."""
    if facts["log_level"] is not None and facts["log_config_file"] is not None:
        yield Warn("--log-level has no effect with --log-config-file, which has levels of its own.")


def hidden_metrics_are_vllms(facts: Facts) -> Findings:
    """Only names of vLLM's metrics were hidden, and only those that it had since a version."""
    given = facts["show_hidden_metrics_for_version"]
    if given is None:
        return
    try:
        names = hidden_since(version_of(given))
    except ValueError:
        yield Problem(f"--show-hidden-metrics-for-version {given}: expected a version of vLLM, such as 0.10.")
        return
    if not facts["vllm_metrics"]:
        yield Warn(
            "--show-hidden-metrics-for-version has no effect without --vllm-metrics: of ours no metric is hidden."
        )
    elif not names:
        yield Warn(f"--show-hidden-metrics-for-version {given} has no effect: vLLM has hidden no metric since.")


def llm_is_watched_otherwise(facts: Facts) -> Findings:
    """Traces and the log of requests belong to a server."""
    names = (
        "otlp_traces_endpoint",
        "log_config_file",
        "log_level",
        "vllm_metrics",
        "show_hidden_metrics_for_version",
        "enable_mfu_metrics",
        "cudagraph_metrics",
        "enable_log_requests",
        "max_log_len",
    )
    given = [flag_of(name) for name in names if facts[name] and facts.given(name)]
    if facts.context == "llm" and given:
        yield Warn(f"{', '.join(given)}: no effect here; configure logging, or trace, in the program that calls LLM.")


def changing_weights_are_held_by_nobody(facts: Facts) -> Findings:
    """Features that retain the initial weights exclude features that release or replace weights."""
    changing = {
        "--enable-sleep-mode": facts["enable_sleep_mode"],
        "--weight-transfer-config": facts["weight_transfer_config"] is not None,
    }
    holding = ("keep_weights", "prepared_weights", "state_canary")
    for flag, is_wanted in changing.items():
        for name in holding:
            if is_wanted and facts[name] is not None:
                yield Problem(f"{flag}: {flag_of(name)} holds on to the weights of the start; leave one of them out.")


def weights_are_kept_in_one_place(facts: Facts) -> Findings:
    """A directory of prepared weights also serves the engine that replaces a dead one."""
    if facts["keep_weights"] is not None and facts["prepared_weights"] is not None:
        yield Problem(
            "--keep-weights: --prepared-weights does the same for an engine that replaces another; leave one of them out."
        )


def sleep_frees_kept_blocks(facts: Facts) -> Findings:
    """Kept blocks lie in memory that the server holds, which an engine cannot release for a sleep."""
    if facts["enable_sleep_mode"] and facts["keep_kv"]:
        yield Problem("--enable-sleep-mode: --keep-kv holds on to the memory of the KV cache; leave one of them out.")


def a_quarantine_has_a_list(facts: Facts) -> Findings:
    """Plugins in quarantine are listed in the canary's directory."""
    if facts["quarantine_plugins"] and facts["state_canary"] is None:
        yield Problem(
            "--quarantine-plugins: the list of plugins lies in the directory of --state-canary; give it too, or neither."
        )


def weights_are_replaced_by_friends(facts: Facts) -> Findings:
    """A client that may replace weights controls the server's answers, so it should need a key."""
    if facts.is_headless:
        return  # its API server warns
    has_key = facts["api_key"] or facts["admin_api_key"]
    if facts.context == "serve" and facts["weight_transfer_config"] is not None and not has_key:
        yield Warn(
            "--weight-transfer-config: this server requires no key, so any client that reaches it may replace its weights; "
            "give --api-key or --admin-api-key."
        )


def paths_of_operators_need_an_operator(facts: Facts) -> Findings:
    """With several keys and no admin key, no client may call the paths that these arguments open."""
    if facts.context != "serve" or len(facts["api_key"] or ()) < 2 or facts["admin_api_key"]:
        return
    names = ("enable_sleep_mode", "weight_transfer_config", "profiler_config", "allow_runtime_lora_updating")
    given = [flag_of(name) for name in names if facts[name]]
    if given:
        yield Warn(
            f"{', '.join(given)}: the paths are the operator's, and with several API keys nobody is the operator; give "
            "--admin-api-key to use them over HTTP."
        )


def servers_read_their_arguments(facts: Facts) -> Findings:
    """Arguments that only a server reads have no effect on `LLM`; a file or a variable may be shared with a server."""
    if facts.context != "llm":
        return
    given: list[str] = []
    shared: list[str] = []
    for name, field in schema().fields.items():
        if not means_nothing_to_llm(field):
            continue
        origin = facts.origin(name)
        if origin == "argument":
            given.append(name)
        elif origin.startswith("config file"):
            shared.append(name)
    if given:
        yield Problem(f"{', '.join(given)}: only a server reads this; leave it out, or use `core serve`.")
    if shared:
        yield Warn(f"{', '.join(shared)}: no effect here: only a server reads this.")


RULES: tuple[Rule, ...] = (
    Rule(log_length_needs_the_log),
    Rule(foreign_api_key_protects_nothing),
    Rule(limits_of_keys_need_keys),
    Rule(shared_limits_are_of_one_process),
    Rule(public_prompts_need_keys),
    Rule(shares_need_keys),
    Rule(samples_are_of_metrics),
    Rule(cache_metrics_need_statistics),
    Rule(restarts_serve_servers),
    Rule(uds_replaces_host_and_port),
    Rule(one_resolution_is_of_one_model),
    Rule(details_need_traces),
    Rule(a_fingerprint_of_ones_own_has_a_value),
    Rule(a_log_file_has_levels_of_its_own),
    Rule(llm_is_watched_otherwise),
    Rule(hidden_metrics_are_vllms),
    Rule(changing_weights_are_held_by_nobody),
    Rule(weights_are_kept_in_one_place),
    Rule(sleep_frees_kept_blocks),
    Rule(a_quarantine_has_a_list),
    Rule(weights_are_replaced_by_friends),
    Rule(paths_of_operators_need_an_operator),
    Rule(servers_read_their_arguments),
)
