"""Rules about the server, tools, metrics, traces and plugins' settings.

Owns: those rules and their rows. Called by: the table (`core.config.rules`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from core.config.rules.rule import Facts, Findings, Problem, Rule, Warn


def c1_log_length(facts: Facts) -> Findings:
    """A length of what is not logged."""
    if not facts["enable_log_requests"] and facts.given("max_log_len"):
        yield Warn("--max-log-len has no effect without --enable-log-requests.")


def c10_foreign_key(facts: Facts) -> Findings:
    """Another engine's variable looks like protection, and is none."""
    if facts.context != "llm" and not facts["api_key"] and facts.environ.get("VLLM_API_KEY"):
        yield Warn(
            "VLLM_API_KEY is not read, so this server asks nobody for a key; set CORE_API_KEY, or give --api-key."
        )


def r22_other_platforms(facts: Facts) -> Findings:
    """Settings under the name of a platform that is not the one that runs."""
    active = facts.platform.name if facts.platform is not None else None
    for name in facts["additional_config"]:
        if name in facts.platforms and active is not None and name != active:
            yield Warn(f"--additional-config.{name} has no effect: the platform is '{active}'.")


def n40_cache_metrics(facts: Facts) -> Findings:
    """They are part of the statistics, and a sample is a share."""
    if facts["kv_cache_metrics"] and facts["disable_log_stats"]:
        yield Problem("--kv-cache-metrics: needs the statistics; leave --disable-log-stats out.")
    sample = facts["kv_cache_metrics_sample"]
    if not 0 < sample <= 1:
        yield Problem(f"--kv-cache-metrics-sample {sample:g}: expected a number above 0 and at most 1.")


def n41_traces(facts: Facts) -> Findings:
    """Traces go somewhere."""
    wanted = [item for item in facts["collect_detailed_traces"] or () if item not in (None, "None")]
    if wanted and not facts["otlp_traces_endpoint"]:
        yield Warn(f"--collect-detailed-traces {' '.join(wanted)} has no effect without --otlp-traces-endpoint.")


def n42_ranges(facts: Facts) -> Findings:
    """A captured pass has no layers to name."""
    if facts["enable_layerwise_nvtx_tracing"] and not facts["enforce_eager"]:
        yield Problem("--enable-layerwise-nvtx-tracing: not while passes are captured; add --enforce-eager.")


def n46_tools(facts: Facts) -> Findings:
    """A choice by the model has to be read from its words."""
    if facts["enable_auto_tool_choice"] and not facts["tool_call_parser"]:
        yield Problem("--enable-auto-tool-choice: needs --tool-call-parser, which reads calls from the model's words.")


def n52_additional(facts: Facts) -> Findings:
    """The configuration's identity includes it, so it holds plain values only."""
    for path, value in leaves(facts["additional_config"], "--additional-config"):
        if not (value is None or isinstance(value, (str, bool, int, float))):
            yield Problem(
                f"{path}: a {type(value).__name__} has no identity; expected text, numbers, lists and mappings."
            )
        elif isinstance(value, float) and math.isnan(value):
            yield Problem(f"{path}: not a number, which equals nothing; expected a number.")


def leaves(tree: Any, path: str) -> Iterator[tuple[str, Any]]:
    """(path, value) of every value in nested mappings and lists."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from leaves(value, f"{path}.{key}")
    elif isinstance(tree, (list, tuple)):
        for index, value in enumerate(tree):
            yield from leaves(value, f"{path}[{index}]")
    else:
        yield path, tree


def n14_twice(facts: Facts) -> Findings:
    """One choice, given in two places."""
    pairs = (
        ("attention_backend", "attention_config", "backend"),
        ("cudagraph_capture_sizes", "compilation_config", "cudagraph_capture_sizes"),
        ("max_cudagraph_capture_size", "compilation_config", "max_cudagraph_capture_size"),
    )
    for name, owner, key in pairs:
        if not facts.given(name) or not facts.given(owner):
            continue
        inner = {str(k).replace("-", "_"): v for k, v in (facts[owner] or {}).items()}.get(key)
        mine = facts.settings.given()[name]
        if inner is not None and mine is not None and inner != mine:
            flags = f"--{name.replace('_', '-')} {mine}", f"--{owner.replace('_', '-')}.{key} {inner}"
            yield Problem(f"{flags[0]} and {flags[1]} differ; give one of them.")


METRICS = ("kv_cache_metrics", "kv_cache_metrics_sample", "disable_log_stats")
TWICE = ("attention_backend", "attention_config", "cudagraph_capture_sizes", "max_cudagraph_capture_size")
RULES: tuple[Rule, ...] = (
    Rule("C1", ("enable_log_requests", "max_log_len"), "warning", c1_log_length),
    Rule("C10", ("api_key",), "warning", c10_foreign_key),
    Rule("R22", ("additional_config",), "warning", r22_other_platforms, "platform"),
    Rule("N14", (*TWICE, "compilation_config"), "error", n14_twice),
    Rule("N40", METRICS, "error", n40_cache_metrics),
    Rule("N41", ("collect_detailed_traces", "otlp_traces_endpoint"), "warning", n41_traces),
    Rule("N42", ("enable_layerwise_nvtx_tracing", "enforce_eager"), "error", n42_ranges),
    Rule("N46", ("enable_auto_tool_choice", "tool_call_parser"), "error", n46_tools),
    Rule("N52", ("additional_config",), "error", n52_additional),
)
