"""Rules about cached prefixes: the unit in which they are matched, and the states that are kept.

Owns: those rules and their order, and `snapshot_every`. Called by: the table (`core_config.rules`), the engine's configuration.
"""

from __future__ import annotations

from typing import Final

from core.api.specs import STATE_DTYPE
from core.args.schema import flag_of
from core_config.rules.rule import Facts, Findings, Problem, Rule, Warn
from core_config.stages.settings import Settings
from core_runtime.specs.kv_types import state_dtype
from core_runtime.specs.tail import first_of_tail

OF_HIDDEN_STATES: Final = ("eagle", "eagle3", "medusa", "mlp_speculator")
"""Methods whose drafts read the model's hidden states, besides those that end in `mtp`."""


def prefixes_are_matched_in_blocks(facts: Facts) -> Findings:
    """The unit in which prefixes are matched is a block."""
    unit, size = facts["prefix_match_unit"], facts["block_size"]
    if unit is not None and unit != size:
        yield Problem(
            f"--prefix-match-unit {unit}: prefixes are matched in blocks, of {size} tokens here; "
            f"leave it out, or set --block-size {unit}."
        )


def states_are_kept_at_block_edges(facts: Facts) -> Findings:
    """States can be kept at the edges of blocks alone."""
    interval, size = facts["prefix_cache_retention_interval"], facts["block_size"]
    if interval and interval % size:
        yield Problem(
            f"--prefix-cache-retention-interval {interval}: states are kept at the edges of blocks of {size} tokens; choose a "
            f"multiple of {size}, or set --block-size."
        )


def kept_states_need_states(facts: Facts) -> Findings:
    """Arguments about cached states have an effect only on models that have states, with prefix caching."""
    if not snapshot_every(facts.settings):
        return
    for name in ("prefix_cache_retention_interval", "mamba_cache_mode"):
        if not facts.given(name) or facts[name] in (0, "none", "align"):
            continue
        shown = "none" if facts[name] is None else facts[name]
        if not facts.has_states:
            yield Warn(f"{flag_of(name)} {shown} has no effect on this model, whose layers have no state.")
        elif facts["enable_prefix_caching"] is False:
            yield Warn(f"{flag_of(name)} {shown} has no effect without prefix caching.")


def state_types_need_states(facts: Facts) -> Findings:
    """Storage types of states have an effect only on models that have states."""
    for name in ("mamba_cache_dtype", "mamba_ssm_cache_dtype"):
        if facts[name] not in ("auto", STATE_DTYPE) and not facts.has_states:
            yield Warn(f"{flag_of(name)} {facts[name]} has no effect on this model, whose layers have no state.")


def skipped_rows_need_shared_keys(facts: Facts) -> Findings:
    """Rows are left out of layers that store no keys and values, where nobody reads the hidden states of a prompt."""
    if not facts["kv_sharing_fast_prefill"] or facts.spec is None:
        return
    method = facts.speculative.get("method")
    if first_of_tail(facts.spec) is None:
        yield Warn(
            "--kv-sharing-fast-prefill has no effect on this model, whose last layers have keys and values of their own."
        )
    elif facts.pooling is not None:
        yield Problem("--kv-sharing-fast-prefill: every token of a text that is pooled is read; leave it out.")
    elif isinstance(method, str) and (method in OF_HIDDEN_STATES or method.endswith("mtp")):
        yield Problem(
            f"--kv-sharing-fast-prefill: drafts by {method} read the hidden states of all tokens of a prompt; leave it out, or "
            "choose another --speculative-config.method, such as ngram or draft_model."
        )


def snapshot_every(settings: Settings) -> int:
    """Return the distance in tokens at which states are kept in any case; 0: none are."""
    interval: int | None = settings["prefix_cache_retention_interval"]
    if settings["mamba_cache_mode"] == "all" or interval is None:
        return int(settings["block_size"])
    return interval


def rounding_by_chance_needs_float16(facts: Facts) -> Findings:
    """Only states in float16 are rounded by chance, and only their recurrent part."""
    if not facts["enable_mamba_cache_stochastic_rounding"]:
        return
    kept = state_dtype(facts["mamba_cache_dtype"], facts["mamba_ssm_cache_dtype"])
    if kept.rpartition("+")[2] != "float16":
        yield Warn(
            "--enable-mamba-cache-stochastic-rounding has no effect: the recurrent part of states is "
            f"{kept.rpartition('+')[2]}; give --mamba-ssm-cache-dtype float16."
        )


RULES: tuple[Rule, ...] = (
    Rule(rounding_by_chance_needs_float16),
    Rule(skipped_rows_need_shared_keys, "memory"),
    Rule(prefixes_are_matched_in_blocks, "memory"),
    Rule(states_are_kept_at_block_edges, "memory"),
    Rule(kept_states_need_states, "memory"),
    Rule(state_types_need_states, "memory"),
)
