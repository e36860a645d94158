"""Rules about the server, its log and its metrics.

Owns: those rules and their order. Called by: the table (`core.config.rules`).
"""

from __future__ import annotations

from core.args.schema import flag_of
from core.config.rules.rule import Facts, Findings, Problem, Rule, Warn

OF_RESTARTS = (
    "engine_restart_window",
    "engine_restart_backoff",
    "engine_wedge_timeout",
    "standby_engine",
    "keep_weights",
)
"""Arguments that only matter when an engine that dies is started again."""


def log_length_needs_the_log(facts: Facts) -> Findings:
    """A limit on logged prompts asks for a log of requests."""
    if not facts["enable_log_requests"] and facts.given("max_log_len"):
        yield Warn("--max-log-len has no effect without --enable-log-requests.")


def foreign_api_key_protects_nothing(facts: Facts) -> Findings:
    """Another engine's variable looks like protection, but is not read."""
    if facts.context != "llm" and not facts["api_key"] and facts.environ.get("VLLM_API_KEY"):
        yield Warn(
            "VLLM_API_KEY is not read, so this server asks nobody for a key; set CORE_API_KEY, or give --api-key."
        )


def cache_metrics_need_statistics(facts: Facts) -> Findings:
    """The metrics of the cache are part of the statistics."""
    if facts["kv_cache_metrics"] and facts["disable_log_stats"]:
        yield Problem("--kv-cache-metrics: needs the statistics; leave --disable-log-stats out.")


def restarts_serve_servers(facts: Facts) -> Findings:
    """Only a server's engine is started again, and only when restarts are allowed."""
    given = [flag_of(name) for name in OF_RESTARTS if facts.given(name)]
    if facts.context == "llm" and facts.given("engine_restarts"):
        given.append(flag_of("engine_restarts"))
    if not given:
        return
    if facts.context == "llm":
        yield Warn(f"{', '.join(given)}: no effect here: the engine of LLM is in this process, and dies with it.")
    elif facts["engine_restarts"] == 0:
        yield Warn(f"{', '.join(given)}: no effect with --engine-restarts 0.")


RULES: tuple[Rule, ...] = (
    Rule(log_length_needs_the_log),
    Rule(foreign_api_key_protects_nothing),
    Rule(cache_metrics_need_statistics),
    Rule(restarts_serve_servers),
)
