"""Rules about speculative decoding. Most of them read `speculative_config`, whose keys belong to the method.

Owns: those rules and their order. Called by: the table (`core_config.rules`).
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from core_config.rules.model import LENGTH_KEYS
from core_config.rules.rule import Derive, Facts, Findings, Problem, Rule, Warn, is_count, is_number
from core_config.speculation.acceptance import METHOD_KEYS, METHODS, SYNTHETIC_KEYS, TYPICAL_KEYS, method_of
from core_config.speculation.control import batch_sizes
from core_config.speculation.keys import speculator_keys

THRESHOLD = 0.09
SUFFIX_DEPTH = 24
HEADS = ("medusa", "mlp_speculator")
"""Methods whose checkpoints give the number of drafts."""


def speculator_names_its_method(facts: Facts) -> Findings:
    """A draft in the speculators format names its method and the number of drafts, unless the user gives them."""
    for key, value in speculator_keys(facts.draft).items():
        if facts.speculative.get(key) is None:
            yield Derive(f"speculative_config.{key}", value, f"'{facts.speculative['model']}' is a speculator")


def method_and_count_are_given(facts: Facts) -> Findings:
    """Speculation names a method and the number of drafts."""
    if facts["speculative_config"] is None:
        return
    values = facts.speculative
    if not isinstance(values.get("method"), str):
        yield Problem("--speculative-config: 'method' is missing; give the name of a speculative plugin.")
    count = values.get("num_speculative_tokens")
    if count is None and values.get("method") in HEADS:
        return  # the number of heads is the default, known once the draft is resolved
    if count is None:
        yield Problem("--speculative-config: 'num_speculative_tokens' is missing; give the number of drafts a step.")
    elif not is_count(count):
        yield Problem(
            f"--speculative-config.num_speculative_tokens {count!r}: expected an integer from 1: drafts a step."
        )


def suffix_drafts_come_from_the_depth(facts: Facts) -> Findings:
    """The number of drafts from suffixes is limited by the depth of their trees."""
    values = facts.speculative
    if values.get("method") != "suffix" or values.get("num_speculative_tokens") is not None:
        return
    depth = values.get("suffix_decoding_max_tree_depth", SUFFIX_DEPTH)
    if is_count(depth):
        yield Derive("speculative_config.num_speculative_tokens", depth, f"the depth of the suffix trees, {depth}")


def budget_holds_the_drafts(facts: Facts) -> Findings:
    """A step has room for one sequence with its drafts."""
    budget, drafts = facts["max_num_batched_tokens"], facts.num_drafts
    if drafts and budget is not None and budget < drafts + 1:
        yield Problem(
            f"--max-num-batched-tokens {budget}: a step with {drafts} drafts needs {drafts + 1}; raise it or draft less."
        )


def drafts_of_all_fit_the_budget(facts: Facts) -> Findings:
    """When the budget is too small for all sequences with their drafts, each gets fewer drafts than its maximum."""
    budget, seqs, drafts = facts["max_num_batched_tokens"], facts["max_num_seqs"], facts.num_drafts
    if drafts and seqs * (drafts + 1) > budget:
        yield Warn(
            f"--speculative-config: {seqs} sequences (--max-num-seqs) with {drafts} drafts each want {seqs * (drafts + 1)} "
            f"tokens a step, but --max-num-batched-tokens is {budget}: when that many run, each gets fewer drafts; raise the "
            "budget, or lower one of the others."
        )


def draft_length_fits_both_models(facts: Facts) -> Findings:
    """A draft model sees no more tokens than it, and its target, were made for."""
    values, length = facts.speculative, facts["max_model_len"]
    own = values.get("max_model_len")
    if own is not None and not is_count(own):
        yield Problem(f"--speculative-config.max_model_len {own!r}: expected an integer from 1.")
    elif values.get("model") is not None and own is None and length is not None and length > 0:
        named = [facts.draft.get(key) for key in LENGTH_KEYS]
        shorter = min([length, *filter(is_count, named)])
        why = "the smaller of the draft model's own limit and the main model's"
        yield Derive("speculative_config.max_model_len", shorter, why)


def shortest_ngram_comes_from_the_longest(facts: Facts) -> Findings:
    """The shortest n-gram is half of the longest."""
    values = facts.speculative
    longest = values.get("prompt_lookup_max")
    if is_count(longest) and values.get("prompt_lookup_min") is None:
        shortest = max(1, longest // 2)
        yield Derive("speculative_config.prompt_lookup_min", shortest, f"half of prompt_lookup_max, {longest}")


def ngrams_are_in_order(facts: Facts) -> Findings:
    """N-grams have at least one token, and the shortest is not longer than the longest."""
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


def drafts_stop_with_many_requests(facts: Facts) -> Findings:
    """With more requests than the threshold, new ones start without drafts; running ones keep theirs."""
    value = facts.speculative.get("disable_by_batch_size")
    if value is not None and not is_count(value, 2):
        yield Problem(f"--speculative-config.disable_by_batch_size {value!r}: expected an integer from 2: requests.")
    elif value is not None:
        why = "with more requests waiting and running, new ones start without drafts; running ones keep theirs"
        yield Derive("speculative_config.disable_by_batch_size", value, why)


def drafts_adapt_or_not(facts: Facts) -> Findings:
    """`adaptive`, which lets the number of drafts follow their benefit, is true or false."""
    value = facts.speculative.get("adaptive")
    if value is not None and not isinstance(value, bool):
        yield Problem(f"--speculative-config.adaptive {value!r}: expected true or false.")


def batch_sizes_are_ranges(facts: Facts) -> Findings:
    """The maximum number of drafts by batch size is given as rows of ranges."""
    value = facts.speculative.get("num_speculative_tokens_per_batch_size")
    if value is not None and batch_sizes(value) is None:
        yield Problem(
            f"--speculative-config.num_speculative_tokens_per_batch_size {value!r}: expected rows of [first size, last size, "
            "drafts], such as [[1, 8, 4], [9, 64, 0]]; ranges begin at 1 or more and do not overlap."
        )


def draft_ranks_are_one(facts: Facts) -> Findings:
    """A draft model runs on one rank, as its target does."""
    values = facts.speculative
    if values.get("draft_tensor_parallel_size") is None and values.get("model") is not None:
        yield Derive("speculative_config.draft_tensor_parallel_size", 1, "a draft model runs on one rank")


def draft_runs_on_one_rank(facts: Facts) -> Findings:
    """The tensor-parallel size of a draft model is that of its target."""
    ranks = facts.speculative.get("draft_tensor_parallel_size")
    if ranks is not None and (not is_count(ranks) or ranks != 1):
        yield Problem(
            f"--speculative-config.draft_tensor_parallel_size {ranks!r}: expected 1, as a draft model runs on one rank."
        )


def draft_runs_on_the_models_device(facts: Facts) -> Findings:
    """A draft model runs on the device of its target, as they exchange tensors."""
    values = facts.speculative
    own = values.get("device")
    if own is None or facts.device is None or values.get("model") is None:
        return
    kind = facts.device.name.partition(":")[0]
    if str(own).partition(":")[0] != kind:
        yield Problem(f"--speculative-config.device {own}: the main model runs on {kind}; leave it out.")


def acceptance_is_known(facts: Facts) -> Findings:
    """The rule of acceptance is a known one, and is named once."""
    values = facts.speculative
    given = {key: values[key] for key in METHOD_KEYS if values.get(key) is not None}
    for key, name in given.items():
        if not isinstance(name, str) or name not in METHODS:
            yield Problem(f"--speculative-config.{key} {name!r}: expected one of {', '.join(METHODS)}.")
    if len(given) > 1:
        yield Problem(f"--speculative-config: {' and '.join(given)} name the same thing; give one of them.")


def acceptance_has_its_own_numbers(facts: Facts) -> Findings:
    """Numbers of a rule of acceptance need that rule."""
    values = facts.speculative
    method = method_of(values)
    for needed, keys in (("typical", TYPICAL_KEYS), ("synthetic", SYNTHETIC_KEYS)):
        for key in keys:
            if values.get(key) is not None and method != needed:
                yield Problem(
                    f"--speculative-config.{key}: has a meaning only with rejection_sample_method {needed}; "
                    "leave it out or choose that."
                )


def typical_acceptance_has_a_threshold(facts: Facts) -> Findings:
    """Typical acceptance has a default threshold."""
    if typical(facts) and facts.speculative.get("posterior_threshold") is None:
        yield Derive("speculative_config.posterior_threshold", THRESHOLD, "the default of typical acceptance")


def typical_acceptance_alpha_is_a_root(facts: Facts) -> Findings:
    """The default alpha of typical acceptance is the square root of the threshold."""
    values = facts.speculative
    threshold = values.get("posterior_threshold")
    if threshold is None:
        threshold = THRESHOLD
    alpha = values.get("posterior_alpha")
    if not typical(facts):
        return
    if not is_number(threshold) or not 0 < threshold < 1:
        yield Problem(f"--speculative-config.posterior_threshold {threshold!r}: expected a number between 0 and 1.")
    elif alpha is None:
        yield Derive("speculative_config.posterior_alpha", math.sqrt(threshold), "the square root of the threshold")
    if alpha is not None and (not is_number(alpha) or not 0 < alpha <= 1):
        yield Problem(f"--speculative-config.posterior_alpha {alpha!r}: expected a number above 0, at most 1.")


def typical(facts: Facts) -> bool:
    """Whether drafts are accepted by typical acceptance."""
    return method_of(facts.speculative) == "typical"


def synthetic_acceptance_has_rates(facts: Facts) -> Findings:
    """Synthetic acceptance has a rate for each draft, in descending order, or a number of tokens a step."""
    values = facts.speculative
    if method_of(values) != "synthetic":
        return
    rates, length = (values.get(key) for key in SYNTHETIC_KEYS)
    if (rates is None) == (length is None):
        yield Problem(
            "--speculative-config.rejection_sample_method synthetic: give either synthetic_acceptance_rates "
            "or synthetic_acceptance_length."
        )
    most = facts.num_drafts + 1
    if length is not None and (not is_number(length) or not 1 <= length <= most):
        yield Problem(
            f"--speculative-config.synthetic_acceptance_length {length!r}: expected a number from 1 to {most}: tokens a step."
        )
    if rates is not None and not _are_rates(rates, facts.num_drafts):
        yield Problem(
            f"--speculative-config.synthetic_acceptance_rates {rates!r}: expected {facts.num_drafts} numbers from 0 to 1, "
            "none of them larger than the one before."
        )


def _are_rates(rates: Any, count: int) -> bool:
    """Whether these are `count` probabilities, none greater than the previous one."""
    if not isinstance(rates, list) or len(rates) != count:
        return False
    if not all(is_number(rate) and 0 <= rate <= 1 for rate in rates):
        return False
    return all(later <= earlier for earlier, later in pairwise(rates))


RULES: tuple[Rule, ...] = (
    Rule(suffix_drafts_come_from_the_depth),
    Rule(speculator_names_its_method),
    Rule(method_and_count_are_given),
    Rule(budget_holds_the_drafts),
    Rule(ngrams_are_in_order),
    Rule(shortest_ngram_comes_from_the_longest),
    Rule(drafts_stop_with_many_requests),
    Rule(drafts_adapt_or_not),
    Rule(batch_sizes_are_ranges),
    Rule(draft_runs_on_one_rank),
    Rule(draft_ranks_are_one),
    Rule(draft_runs_on_the_models_device, "platform"),
    Rule(acceptance_is_known),
    Rule(acceptance_has_its_own_numbers),
    Rule(synthetic_acceptance_has_rates),
    Rule(typical_acceptance_has_a_threshold),
    Rule(typical_acceptance_alpha_is_a_root),
    Rule(drafts_of_all_fit_the_budget, "model"),
    Rule(draft_length_fits_both_models, "model"),
)
