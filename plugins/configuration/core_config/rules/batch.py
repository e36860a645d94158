"""Rules about steps: token budget, sequences, chunked prefill, prefix caching.

Owns: those rules and their order. Called by: the table (`core_config.rules`).
"""

from __future__ import annotations

from core.api.config import CacheConfig, SchedulerConfig
from core.args.schema import flag_of
from core_config.rules.rule import Derive, Facts, Findings, Problem, Rule, Warn

CONSTANTS = {
    "block_size": CacheConfig().block_size,
    "max_num_seqs": SchedulerConfig().max_num_seqs,
    "max_num_batched_tokens": SchedulerConfig().max_num_batched_tokens,
}
LONG_SHARE = 0.04


def open_sizes_get_constants(facts: Facts) -> Findings:
    """Sizes that neither the user nor the platform has settled have constant defaults."""
    for name, value in CONSTANTS.items():
        if facts[name] is None:
            yield Derive(name, value, "the scheduler's constant: the platform proposes nothing")


def budget_gives_each_sequence_a_token(facts: Facts) -> Findings:
    """Every sequence can get a token in each step."""
    seqs, tokens = facts["max_num_seqs"], facts["max_num_batched_tokens"]
    if facts.given("max_num_seqs") and facts.given("max_num_batched_tokens") and seqs > tokens:
        yield Problem(
            f"--max-num-seqs {seqs}: more than --max-num-batched-tokens {tokens}, so not every sequence gets a token "
            f"a step; lower the one or raise the other."
        )


def open_size_follows_the_given_one(facts: Facts) -> Findings:
    """Sequences left open are capped by the budget; a budget left open grows to the sequences."""
    seqs, tokens = facts["max_num_seqs"], facts["max_num_batched_tokens"]
    if seqs > tokens and facts.given("max_num_seqs"):
        yield Derive("max_num_batched_tokens", seqs, f"a token a step for each of --max-num-seqs {seqs}")
    elif seqs > tokens:
        yield Derive("max_num_seqs", tokens, f"no more than max_num_batched_tokens, {tokens}")


def chunks_and_prefixes_are_on(facts: Facts) -> Findings:
    """Chunked prefill and prefix caching are on when they are left open."""
    for name in ("enable_prefix_caching", "enable_chunked_prefill"):
        if facts[name] is None:
            yield Derive(name, True, "on: the model supports it")


def whole_prompts_hold_up_others(facts: Facts) -> Findings:
    """Without chunked prefill a long prompt keeps all running requests waiting."""
    if facts.given("enable_chunked_prefill") and facts["enable_chunked_prefill"] is False:
        yield Warn(
            "--no-enable-chunked-prefill: a prompt must fit one step whole and holds up running requests; "
            "leave the argument out to have prompts cut."
        )


def platform_without_support_switches_off(facts: Facts) -> Findings:
    """A platform that declares `chunked_prefill` or `prefix_caching` false runs without it."""
    for name in ("enable_chunked_prefill", "enable_prefix_caching"):
        if facts.capability(name.removeprefix("enable_")) is not False:
            continue
        why = f"platform {facts.platform.name if facts.platform else ''} does not support it on this machine"
        yield Derive(name, False, why, force=True)
        if facts.given(name) and facts.settings.given()[name]:
            yield Warn(f"{flag_of(name)} is switched off: {why}.")


def whole_prompts_fit_the_budget(facts: Facts) -> Findings:
    """Without chunked prefill the budget is at least the longest prompt, and no more than all sequences need."""
    if facts["enable_chunked_prefill"]:
        return
    length, budget, seqs = facts["max_model_len"], facts["max_num_batched_tokens"], facts["max_num_seqs"]
    if facts.given("max_num_batched_tokens"):
        if budget < length:
            yield Problem(
                f"--no-enable-chunked-prefill: a prompt of {length} tokens must fit one step, but "
                f"--max-num-batched-tokens is {budget}; raise it or lower --max-model-len."
            )
    elif budget < length:
        yield Derive("max_num_batched_tokens", length, "whole prompts in one step, as chunked prefill is off")
    elif budget > seqs * length:
        why = f"{seqs} sequences of {length} tokens, as chunked prefill is off"
        yield Derive("max_num_batched_tokens", seqs * length, why)


def long_prefills_are_part_of_all(facts: Facts) -> Findings:
    """The limit of long partial prefills is a part of the limit of all partial prefills."""
    most, long = facts["max_num_partial_prefills"], facts["max_long_partial_prefills"]
    if long > most:
        yield Problem(
            f"--max-long-partial-prefills {long}: more than --max-num-partial-prefills {most}; "
            "lower the one or raise the other."
        )


def long_threshold_comes_from_the_length(facts: Facts) -> Findings:
    """With several partial prefills and no threshold, a share of the context counts as long."""
    length = facts["max_model_len"]
    if facts["max_num_partial_prefills"] > 1 and not facts["long_prefill_token_threshold"] and length:
        threshold = max(1, int(length * LONG_SHARE))
        why = f"{LONG_SHARE:.0%} of max_model_len, as several prompts are computed in part at the same time"
        yield Derive("long_prefill_token_threshold", threshold, why)


def async_where_the_device_computes_alone(facts: Facts) -> Findings:
    """Asynchronous scheduling is on where a device computes; on a CPU it would take a core from the computation."""
    if facts["async_scheduling"] is not None:
        return
    platform = facts.platform.name if facts.platform else "cpu"
    if facts["pipeline_parallel_size"] > 1:
        yield Derive("async_scheduling", True, "on: stages compute different steps at the same time")
    elif platform == "cpu":
        yield Derive("async_scheduling", False, "off: planning would take a core from computing")
    else:
        yield Derive("async_scheduling", True, "on: the device computes by itself")


def states_behind_drafts_are_known(facts: Facts) -> Findings:
    """With drafts, the state from which a sequence continues is known only after the previous step."""
    if not (facts["async_scheduling"] and facts.has_states and facts.num_drafts):
        return
    yield Derive("async_scheduling", False, "off: states that come back from drafts need the step before", force=True)
    if facts.given("async_scheduling"):
        yield Warn(
            "--async-scheduling has no effect: the model has layers with a state, which comes back from rejected drafts "
            "(--speculative-config)."
        )


def short_stalls_need_chunks(facts: Facts) -> Findings:
    """The size of the prompts' chunks limits how long streams wait for prompts."""
    if facts["max_stall_ms"] and facts["enable_chunked_prefill"] is False:
        yield Problem(
            f"--max-stall-ms {facts['max_stall_ms']:g}: prompts are computed whole (enable_chunked_prefill is off), so "
            "streams wait for all of one; leave one of the two out."
        )


def mixed_budget_is_part_of_the_budget(facts: Facts) -> Findings:
    """The budget of mixed steps is a part of the whole budget."""
    mixed, budget = facts["max_num_mixed_batched_tokens"], facts["max_num_batched_tokens"]
    if facts["max_stall_ms"] and not facts.given("max_num_mixed_batched_tokens"):
        yield Derive("max_num_mixed_batched_tokens", budget, "max_num_batched_tokens: --max-stall-ms sizes the chunks")
    elif mixed is None:
        yield Derive("max_num_mixed_batched_tokens", budget, "max_num_batched_tokens: the platform asks for no less")
    elif budget is not None and mixed > budget:
        why = f"no more than max_num_batched_tokens, {budget}"
        if facts.given("max_num_mixed_batched_tokens"):
            yield Problem(
                f"--max-num-mixed-batched-tokens {mixed}: more than --max-num-batched-tokens {budget}; lower the one or "
                "raise the other."
            )
        else:
            yield Derive("max_num_mixed_batched_tokens", budget, why)


def interactive_streams_wait_for_no_queue(facts: Facts) -> Findings:
    """Streams that are to wait little do not wait longer while prompts queue up."""
    if facts["performance_mode"] == "interactivity":
        yield Derive("queued_prompts_weight", 0.0, "--performance-mode interactivity: streams wait for no queue")


RULES: tuple[Rule, ...] = (
    Rule(interactive_streams_wait_for_no_queue),
    Rule(open_sizes_get_constants, "platform"),
    Rule(budget_gives_each_sequence_a_token),
    Rule(open_size_follows_the_given_one, "platform"),
    Rule(platform_without_support_switches_off, "platform"),
    Rule(chunks_and_prefixes_are_on, "platform"),
    Rule(whole_prompts_hold_up_others),
    Rule(whole_prompts_fit_the_budget, "model"),
    Rule(long_prefills_are_part_of_all),
    Rule(long_threshold_comes_from_the_length, "model"),
    Rule(async_where_the_device_computes_alone, "platform"),
    Rule(states_behind_drafts_are_known, "model"),
    Rule(short_stalls_need_chunks, "platform"),
    Rule(mixed_budget_is_part_of_the_budget, "platform"),
)
