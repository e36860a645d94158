"""Rules about steps: token budget, sequences, chunked prefill, prefix caching, captured sizes.

Owns: those rules and their rows. Called by: the table (`core.config.rules`).
"""

from __future__ import annotations

from core.config.rules.rule import Derive, Facts, Findings, Problem, Rule, Warn

CONSTANTS = {"block_size": 16, "max_num_seqs": 128, "max_num_batched_tokens": 2048}
CAPTURE_MOST = 512
LONG_SHARE = 0.04


def n6_constants(facts: Facts) -> Findings:
    """What neither the user nor the platform has settled."""
    for name, value in CONSTANTS.items():
        if facts[name] is None:
            yield Derive(name, value, "the scheduler's constant: the platform proposes nothing")


def r29_fewer_tokens_than_sequences(facts: Facts) -> Findings:
    """Both given, and not every sequence could get a token a step."""
    seqs, tokens = facts["max_num_seqs"], facts["max_num_batched_tokens"]
    if facts.given("max_num_seqs") and facts.given("max_num_batched_tokens") and seqs > tokens:
        yield Problem(
            f"--max-num-seqs {seqs}: more than --max-num-batched-tokens {tokens}, so not every sequence gets a token "
            f"a step; lower the one or raise the other."
        )


def r29_capped_sequences(facts: Facts) -> Findings:
    """Sequences left open are capped by the budget; a budget left open grows to the sequences."""
    seqs, tokens = facts["max_num_seqs"], facts["max_num_batched_tokens"]
    if seqs > tokens and facts.given("max_num_seqs"):
        yield Derive("max_num_batched_tokens", seqs, f"a token a step for each of --max-num-seqs {seqs}")
    elif seqs > tokens:
        yield Derive("max_num_seqs", tokens, f"no more than max_num_batched_tokens, {tokens}")


def n7_on_where_supported(facts: Facts) -> Findings:
    """Chunked prefill and prefix caching, when they are left open."""
    pooling = facts["runner"] == "pooling"
    why = "off: the model is run for pooling" if pooling else "on: the model supports it"
    for name in ("enable_prefix_caching", "enable_chunked_prefill"):
        if facts[name] is None:
            yield Derive(name, not pooling, why)


def n8_against_support(facts: Facts) -> Findings:
    """Generation without chunked prefill is slow; pooling with either is wrong."""
    pooling = facts["runner"] == "pooling"
    if not pooling and facts.given("enable_chunked_prefill") and facts["enable_chunked_prefill"] is False:
        yield Warn(
            "--no-enable-chunked-prefill: a prompt must fit one step whole and holds up running requests; "
            "leave the argument out to have prompts cut."
        )


def n8_pooling(facts: Facts) -> Findings:
    """A pooling model reads its whole prompt at once and keeps nothing."""
    for name in ("enable_chunked_prefill", "enable_prefix_caching"):
        if facts["runner"] == "pooling" and facts.given(name) and facts[name]:
            flag = "--" + name.replace("_", "-")
            yield Problem(f"{flag}: --runner pooling does not support it; leave {flag} out.")


def n9_platform_without(facts: Facts) -> Findings:
    """Platforms that declare `chunked_prefill` or `prefix_caching` false."""
    for name in ("enable_chunked_prefill", "enable_prefix_caching"):
        if facts.capability(name.removeprefix("enable_")) is not False:
            continue
        why = f"platform {facts.platform.name if facts.platform else ''} does not support it on this machine"
        yield Derive(name, False, why, force=True)
        if facts.given(name) and facts.settings.given()[name]:
            yield Warn(f"--{name.replace('_', '-')} is switched off: {why}.")


def c8_states(facts: Facts) -> Findings:
    """Models with layers that keep a state: it holds the last token's only, so no prefix can be taken up again."""
    if not facts.has_states or facts["enable_prefix_caching"] is False:
        return
    why = "the model has layers with a state, which exists for the newest token of a sequence alone"
    yield Derive("enable_prefix_caching", False, f"off: {why}", force=True)
    if facts.given("enable_prefix_caching"):
        yield Warn(f"--enable-prefix-caching is switched off: {why}.")


def n5_whole_prompts(facts: Facts) -> Findings:
    """Chunked prefill off: the budget holds the longest prompt, but no more than all sequences need."""
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


def n10_pattern(facts: Facts) -> Findings:
    """A pattern of names cannot choose logits processors."""
    pattern = facts.get("logits_processor_pattern")
    if pattern is not None:
        yield Problem(f"--logits-processor-pattern {pattern}: not supported; name them with --logits-processors.")


def n51_partial_prefills(facts: Facts) -> Findings:
    """Long ones are part of all."""
    most, long = facts["max_num_partial_prefills"], facts["max_long_partial_prefills"]
    if long > most:
        yield Problem(
            f"--max-long-partial-prefills {long}: more than --max-num-partial-prefills {most}; "
            "lower the one or raise the other."
        )


def n51_long_threshold(facts: Facts) -> Findings:
    """Several partial prefills without a threshold: what is long is told by the context."""
    length = facts["max_model_len"]
    if facts["max_num_partial_prefills"] > 1 and not facts["long_prefill_token_threshold"] and length:
        threshold = max(1, int(length * LONG_SHARE))
        why = f"{LONG_SHARE:.0%} of max_model_len, as several prompts are computed in part at the same time"
        yield Derive("long_prefill_token_threshold", threshold, why)


def n45_async(facts: Facts) -> Findings:
    """Left open, planning ahead is on where the device computes by itself: on the host it would take a core."""
    if facts["async_scheduling"] is not None:
        return
    platform = facts.platform.name if facts.platform else "cpu"
    if facts.num_drafts:
        yield Derive("async_scheduling", False, "off: drafts need the tokens of the step before")
    elif platform == "cpu":
        yield Derive("async_scheduling", False, "off: planning would take a core from computing")
    else:
        yield Derive("async_scheduling", True, "on: the device computes by itself")


def n45_against_drafts(facts: Facts) -> Findings:
    """Drafts are proposed from the tokens of the step before."""
    if facts["async_scheduling"] and facts.given("async_scheduling") and facts["speculative_config"]:
        yield Problem(
            "--async-scheduling: drafts (--speculative-config) need the tokens of the step before; leave one of them out."
        )


def mixed_budget(facts: Facts) -> Findings:
    """A part of the budget, never more."""
    mixed, budget = facts["max_num_mixed_batched_tokens"], facts["max_num_batched_tokens"]
    if mixed is None:
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


def n20_interleave(facts: Facts) -> Findings:
    """A block holds whole runs of interleaved tokens."""
    size, run = facts["block_size"], facts["cp_kv_cache_interleave_size"]
    if size is not None and run > 1 and size % run:
        yield Problem(
            f"--block-size {size}: not a multiple of --cp-kv-cache-interleave-size {run}; "
            f"choose --block-size {-(-size // run) * run}."
        )


def r45_eager(facts: Facts) -> Findings:
    """Eager runs capture nothing."""
    if not facts["enforce_eager"]:
        return
    yield Derive("max_cudagraph_capture_size", 0, "nothing is captured with --enforce-eager")
    for name in ("cudagraph_capture_sizes", "max_cudagraph_capture_size"):
        if facts.given(name):
            yield Warn(f"--{name.replace('_', '-')} has no effect with --enforce-eager.")


def n43_largest_capture(facts: Facts) -> Findings:
    """The largest size is the largest of the list."""
    sizes, most = facts["cudagraph_capture_sizes"], facts["max_cudagraph_capture_size"]
    numbers = [int(size) for size in sizes or () if str(size).isdigit()]
    if numbers and facts.given("max_cudagraph_capture_size") and most is not None and max(numbers) != most:
        yield Problem(
            f"--max-cudagraph-capture-size {most}: the largest of --cudagraph-capture-sizes is {max(numbers)}; "
            "give only one of the two, or equal ones."
        )


def n43_default_capture(facts: Facts) -> Findings:
    """On platforms that capture the forward pass."""
    if facts.capability("device_graphs") and facts["max_cudagraph_capture_size"] is None:
        most = min(2 * facts["max_num_seqs"], CAPTURE_MOST)
        sizes = [int(size) for size in facts["cudagraph_capture_sizes"] or ()]
        why = "the largest of --cudagraph-capture-sizes" if sizes else f"2 x max_num_seqs, at most {CAPTURE_MOST}"
        yield Derive("max_cudagraph_capture_size", max(sizes, default=most), why)


BATCH = ("max_num_seqs", "max_num_batched_tokens")
PROPOSED = "core_propose of the platform"
RULES: tuple[Rule, ...] = (
    Rule("N1", BATCH, "derived", stage="platform", instead=f"{PROPOSED}, from its table of devices"),
    Rule("N2", BATCH, "derived", stage="platform", instead=f"{PROPOSED}, from its table of devices"),
    Rule("N3", BATCH, "derived", stage="platform", instead=f"{PROPOSED}, from its table of devices"),
    Rule("N4", BATCH, "derived", stage="platform", instead=f"{PROPOSED}, by the number of ranks"),
    Rule("N6", ("block_size", *BATCH), "derived", n6_constants, "platform"),
    Rule("R29", BATCH, "error", r29_fewer_tokens_than_sequences),
    Rule("R29", BATCH, "derived", r29_capped_sequences, "platform"),
    Rule("N9", ("enable_chunked_prefill", "enable_prefix_caching"), "warning", n9_platform_without, "platform"),
    Rule(
        "N7",
        ("enable_chunked_prefill", "enable_prefix_caching", "runner"),
        "derived",
        n7_on_where_supported,
        "platform",
    ),
    Rule("N8", ("enable_chunked_prefill", "runner"), "warning", n8_against_support),
    Rule("N8", ("enable_chunked_prefill", "enable_prefix_caching", "runner"), "error", n8_pooling),
    Rule("C8", ("enable_prefix_caching",), "derived", c8_states, "model"),
    Rule("N5", ("enable_chunked_prefill", "max_model_len", *BATCH), "derived", n5_whole_prompts, "model"),
    Rule("N10", (), "error", n10_pattern),
    Rule("N51", ("max_num_partial_prefills", "max_long_partial_prefills"), "error", n51_partial_prefills),
    Rule(
        "N51",
        ("max_num_partial_prefills", "long_prefill_token_threshold", "max_model_len"),
        "derived",
        n51_long_threshold,
        "model",
    ),
    Rule("N45", ("async_scheduling", "speculative_config"), "derived", n45_async, "platform"),
    Rule("N45", ("async_scheduling", "speculative_config"), "error", n45_against_drafts),
    Rule("C5", ("max_num_mixed_batched_tokens", "max_num_batched_tokens"), "derived", mixed_budget, "platform"),
    Rule("N20", ("block_size", "cp_kv_cache_interleave_size"), "error", n20_interleave, "platform"),
    Rule("R45", ("enforce_eager", "cudagraph_capture_sizes", "max_cudagraph_capture_size"), "derived", r45_eager),
    Rule("N43", ("cudagraph_capture_sizes", "max_cudagraph_capture_size"), "error", n43_largest_capture),
    Rule(
        "N43",
        ("cudagraph_capture_sizes", "max_cudagraph_capture_size", "max_num_seqs"),
        "derived",
        n43_default_capture,
        "platform",
    ),
)
