"""Rules between arguments that need nothing but the arguments.

Owns: one list of checks, all run, all reported. Never does: change a value. Called by: resolve.
"""

from __future__ import annotations

from typing import Any

from core.config.settings import Settings


def check_relations(settings: Settings) -> tuple[list[str], list[str]]:
    """(problems, warnings)."""
    problems: list[str] = []
    warnings: list[str] = []
    seqs, tokens = settings["max_num_seqs"], settings["max_num_batched_tokens"]
    if seqs is not None and tokens is not None and seqs > tokens:
        problems.append(
            f"--max-num-seqs {seqs}: more than --max-num-batched-tokens {tokens}, so not every sequence gets a token "
            f"a step; lower the one or raise the other."
        )
    if settings.user_set("gpu_memory_utilization") and settings["gpu_memory_utilization"] > 0.98:
        warnings.append(
            f"--gpu-memory-utilization {settings['gpu_memory_utilization']}: above 0.98 memory may run out."
        )
    if settings["trust_remote_code"]:
        warnings.append("--trust-remote-code has no effect: no served architecture needs code from its checkpoint.")
    if not settings.user_set("enable_log_requests") and settings.user_set("max_log_len"):
        warnings.append("--max-log-len has no effect without --enable-log-requests.")
    for name in ("revision", "tokenizer_revision"):
        if settings[name] is not None and settings["model" if name == "revision" else "tokenizer"] is None:
            problems.append(f"--{name.replace('_', '-')}: names a revision, but of nothing; name what it belongs to.")
    names = settings["served_model_name"] or []
    if settings["model"] is None and len(names) > 1 and ("/" in names[-1] or names[-1].endswith(".gguf")):
        problems.append(
            f"--served-model-name {' '.join(names)}: no model is named, and '{names[-1]}' looks like one; "
            "write the model first: core serve MODEL --served-model-name NAME."
        )
    problems += _speculative(settings["speculative_config"], tokens)
    return problems, warnings


def _speculative(config: dict[str, Any] | None, budget: int | None) -> list[str]:
    if config is None:
        return []
    values = {key.replace("-", "_"): value for key, value in config.items()}
    problems: list[str] = []
    if not isinstance(values.get("method"), str):
        problems.append("--speculative-config: 'method' is missing; give the name of a speculative plugin.")
    count = values.get("num_speculative_tokens")
    if count is None:
        problems.append("--speculative-config: 'num_speculative_tokens' is missing; give the number of drafts a step.")
    elif isinstance(count, bool) or not isinstance(count, int) or count < 1:
        problems.append(
            f"--speculative-config.num_speculative_tokens {count!r}: expected an integer from 1: drafts a step."
        )
    elif budget is not None and budget < count + 1:
        problems.append(
            f"--max-num-batched-tokens {budget}: a step with {count} drafts needs {count + 1}; raise it or draft less."
        )
    return problems
