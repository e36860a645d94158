"""Rules about speculative decoding. Most look into `speculative_config`, whose keys belong to the method.

Owns: those rules and their rows. Called by: the table (`core.config.rules`).
"""

from __future__ import annotations

import math

from core.config.rules.model import LENGTH_KEYS
from core.config.rules.rule import Derive, Facts, Findings, Problem, Rule, is_count, is_number

THRESHOLD = 0.09


def r6_count(facts: Facts) -> Findings:
    """A method, and a number of drafts."""
    if facts["speculative_config"] is None:
        return
    values = facts.speculative
    if not isinstance(values.get("method"), str):
        yield Problem("--speculative-config: 'method' is missing; give the name of a speculative plugin.")
    count = values.get("num_speculative_tokens")
    if count is None:
        yield Problem("--speculative-config: 'num_speculative_tokens' is missing; give the number of drafts a step.")
    elif not is_count(count):
        yield Problem(
            f"--speculative-config.num_speculative_tokens {count!r}: expected an integer from 1: drafts a step."
        )


def c9_states(facts: Facts) -> Findings:
    """A rejected draft can be forgotten, but not what it did to a state."""
    if facts.has_states and facts.speculative:
        yield Problem(
            "--speculative-config: the model has layers with a state, and what rejected drafts do to it cannot be undone; "
            "leave --speculative-config out."
        )


def r40_budget(facts: Facts) -> Findings:
    """One sequence with its drafts has to fit a step."""
    budget, drafts = facts["max_num_batched_tokens"], facts.num_drafts
    if drafts and budget is not None and budget < drafts + 1:
        yield Problem(
            f"--max-num-batched-tokens {budget}: a step with {drafts} drafts needs {drafts + 1}; raise it or draft less."
        )


def n12_lora_budget(facts: Facts) -> Findings:
    """With LoRA every sequence with its drafts has to fit a step."""
    budget, seqs, drafts = facts["max_num_batched_tokens"], facts["max_num_seqs"], facts.num_drafts
    need = seqs * (drafts + 1)
    if facts["enable_lora"] and drafts and budget < need:
        yield Problem(
            f"--max-num-batched-tokens {budget}: with LoRA, {seqs} sequences with {drafts} drafts each need {need}; "
            "raise it or lower --max-num-seqs."
        )


def r16_draft_length(facts: Facts) -> Findings:
    """A draft model sees no more than itself and the main model can."""
    values, length = facts.speculative, facts["max_model_len"]
    own = values.get("max_model_len")
    if own is not None and not is_count(own):
        yield Problem(f"--speculative-config.max_model_len {own!r}: expected an integer from 1.")
    elif values.get("model") is not None and own is None and length is not None and length > 0:
        limits = [value for key, value in facts.draft.items() if key in LENGTH_KEYS and is_count(value)]
        shorter = min([length, *limits])
        why = "the smaller of the draft model's own limit and the main model's"
        yield Derive("speculative_config.max_model_len", shorter, why)


def r20_shortest(facts: Facts) -> Findings:
    """The shortest n-gram is half of the longest."""
    values = facts.speculative
    longest = values.get("prompt_lookup_max")
    if is_count(longest) and values.get("prompt_lookup_min") is None:
        shortest = max(1, longest // 2)
        yield Derive("speculative_config.prompt_lookup_min", shortest, f"half of prompt_lookup_max, {longest}")


def r49_ngrams(facts: Facts) -> Findings:
    """From 1, and in order."""
    values = facts.speculative
    found = {name: values.get(name) for name in ("prompt_lookup_min", "prompt_lookup_max")}
    for name, value in found.items():
        if value is not None and not is_count(value):
            yield Problem(f"--speculative-config.{name} {value!r}: expected an integer from 1: tokens.")
    shortest, longest = found["prompt_lookup_min"], found["prompt_lookup_max"]
    if is_count(shortest) and is_count(longest) and shortest > longest:
        yield Problem(
            f"--speculative-config.prompt_lookup_min {shortest}: more than prompt_lookup_max {longest}; "
            "lower the one or raise the other."
        )


def r23_threshold(facts: Facts) -> Findings:
    """Above it new requests start without drafts; running ones keep theirs."""
    value = facts.speculative.get("disable_by_batch_size")
    if value is not None and not is_count(value, 2):
        yield Problem(f"--speculative-config.disable_by_batch_size {value!r}: expected an integer from 2: requests.")
    elif value is not None:
        why = "with more requests waiting and running, new ones start without drafts; running ones keep theirs"
        yield Derive("speculative_config.disable_by_batch_size", value, why)


def r26_draft_ranks(facts: Facts) -> Findings:
    """A draft model runs on one rank or on all."""
    values, size = facts.speculative, facts["tensor_parallel_size"]
    own = values.get("draft_tensor_parallel_size")
    if own is None and values.get("model") is not None:
        yield Derive("speculative_config.draft_tensor_parallel_size", size, "the main model's tensor_parallel_size")


def r26_other_ranks(facts: Facts) -> Findings:
    """Anything between."""
    own, size = facts.speculative.get("draft_tensor_parallel_size"), facts["tensor_parallel_size"]
    if own is not None and (not is_count(own) or own not in (1, size)):
        expected = "1" if size == 1 else f"1 or {size}, the main model's --tensor-parallel-size"
        yield Problem(f"--speculative-config.draft_tensor_parallel_size {own!r}: expected {expected}.")


def r51_device(facts: Facts) -> Findings:
    """Draft and main model exchange tensors; methods without a model have no device."""
    values = facts.speculative
    own = values.get("device")
    if own is None or facts.device is None or values.get("model") is None:
        return
    kind = facts.device.name.partition(":")[0]
    if str(own).partition(":")[0] != kind:
        yield Problem(f"--speculative-config.device {own}: the main model runs on {kind}; leave it out.")


def r59_threshold(facts: Facts) -> Findings:
    """Typical acceptance has a threshold."""
    if typical(facts) and facts.speculative.get("posterior_threshold") is None:
        yield Derive("speculative_config.posterior_threshold", THRESHOLD, "the default of typical acceptance")


def r56_alpha(facts: Facts) -> Findings:
    """Typical acceptance: alpha is the square root of the threshold."""
    values = facts.speculative
    threshold = values.get("posterior_threshold", THRESHOLD)
    if not typical(facts):
        return
    if not is_number(threshold) or not 0 < threshold < 1:
        yield Problem(f"--speculative-config.posterior_threshold {threshold!r}: expected a number between 0 and 1.")
    elif values.get("posterior_alpha") is None:
        yield Derive("speculative_config.posterior_alpha", math.sqrt(threshold), "the square root of the threshold")


def typical(facts: Facts) -> bool:
    """Whether drafts are accepted by typical acceptance."""
    return facts.speculative.get("acceptance_method") in ("typical_acceptance_sampler", "typical")


CONFIG = ("speculative_config",)
LORA = ("max_num_batched_tokens", "max_num_seqs", "enable_lora")
RULES: tuple[Rule, ...] = (
    Rule("R6", CONFIG, "error", r6_count),
    Rule("C9", CONFIG, "error", c9_states, "model"),
    Rule("R40", (*CONFIG, "max_num_batched_tokens"), "error", r40_budget),
    Rule("N12", (*CONFIG, *LORA), "error", n12_lora_budget, "platform"),
    Rule("R49", CONFIG, "error", r49_ngrams),
    Rule("R20", CONFIG, "derived", r20_shortest),
    Rule("R23", CONFIG, "derived", r23_threshold),
    Rule("R26", (*CONFIG, "tensor_parallel_size"), "error", r26_other_ranks),
    Rule("R26", (*CONFIG, "tensor_parallel_size"), "derived", r26_draft_ranks),
    Rule("R35", CONFIG, "derived", instead="R26, which says the same"),
    Rule("R51", CONFIG, "error", r51_device, "platform"),
    Rule("R59", CONFIG, "derived", r59_threshold),
    Rule("R56", CONFIG, "derived", r56_alpha),
    Rule("R16", (*CONFIG, "max_model_len"), "derived", r16_draft_length, "model"),
)
