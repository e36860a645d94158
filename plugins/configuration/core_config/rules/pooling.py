"""Rules about pooling: arguments without effect for vectors, and features that an encoder does not have.

Owns: those rules and their order. Called by: the table (`core_config.rules`).
"""

from __future__ import annotations

from core.api.specs import AttentionSpec
from core.args.schema import flag_of
from core_config.pooled.rerankers import known_reranker
from core_config.rules.rule import Derive, Facts, Findings, Problem, Rule, Warn
from core_config.told import TOLD


def encoders_see_whole_texts(facts: Facts) -> Findings:
    """In an encoder tokens see later ones, so a text is computed in one step, and cached prefixes are of no use."""
    mixers = facts.spec.mixers if facts.spec is not None else ()
    if all(not isinstance(mixer, AttentionSpec) or mixer.causal for mixer in mixers):
        return
    for name in ("enable_chunked_prefill", "enable_prefix_caching"):
        why = "off: each token of an encoder sees the whole text"
        if facts.given(name) and facts.settings.given()[name]:
            yield Warn(f"{flag_of(name)} has no effect: each token of an encoder sees the whole text.")
        yield Derive(name, False, why, force=True)


def texts_are_as_long_as_trained(facts: Facts) -> Findings:
    """The context is no longer than the texts in the checkpoint's training, unless the user says otherwise."""
    pooling = facts.pooling
    if pooling is None or pooling.max_tokens is None or facts.given("max_model_len") or facts.spec is None:
        return
    length = facts["max_model_len"]
    if length is None or pooling.max_tokens < length:
        why = "max_seq_length of sentence-transformers' files"
        yield Derive("max_model_len", pooling.max_tokens, why, force=True)


def pooling_has_no_drafts(facts: Facts) -> Findings:
    """A pooling model has no tokens to draft, and no logits to change."""
    if facts.pooling is not None and facts["speculative_config"]:
        yield Problem("--speculative-config: nothing can be drafted for --runner pooling; leave one of the two out.")
    if facts.pooling is not None and facts["logits_processors"]:
        yield Problem("--logits-processors: there are no logits with --runner pooling; leave one of the two out.")
    for flag in TOLD:
        if facts.pooling is not None and facts[flag]:
            yield Problem(f"{flag_of(flag)}: outputs are vectors with --runner pooling; leave one of the two out.")


def pooling_is_implied(facts: Facts) -> Findings:
    """Where neither the checkpoint nor the user names a pooling, the usual one may be wrong for the model."""
    pooling = facts.pooling
    if pooling is not None and pooling.source.startswith("usual"):
        yield Warn(
            f"hidden states are pooled by '{pooling.kinds[0]}', {pooling.source}. Say otherwise with "
            "--pooler-config.pooling-type."
        )


def keys_of_the_pooler_pool(facts: Facts) -> Findings:
    """A model that generates text has no pooler."""
    if facts.spec is None or facts.pooling is not None:
        return
    if facts["pooler_config"]:
        yield Warn("--pooler-config has no effect with --runner generate.")
    if facts["convert"] in ("embed", "classify"):
        yield Warn(f"--convert {facts['convert']} has no effect with --runner generate.")


def rerankers_may_generate(facts: Facts) -> Findings:
    """A reranker that is recognized by name generates text unless the user says otherwise, as its own scripts do."""
    if facts.spec is None or facts.pooling is not None or facts.given("runner") or facts.manifest is None:
        return
    name = str(facts["model"])
    if known_reranker(name, facts.manifest.config) is not None:
        yield Warn(
            f"'{name}' is a reranker by its name, and runs for text; --runner pooling serves /score and /rerank."
        )


def io_processors_are_of_models_that_pool(facts: Facts) -> Findings:
    """A model that generates text has no route with data, and arguments need their plugin."""
    name = facts["io_processor_plugin"]
    if name is not None and facts.pooling is None:
        yield Problem(
            f"--io-processor-plugin {name}: the model generates text, and IO processors make answers of vectors and classes; "
            "serve it with --runner pooling, or leave it out."
        )
    if name is None and facts["io_processor_config"]:
        yield Problem(
            "--io-processor-config: no IO processor is used; name one with --io-processor-plugin, or leave it out."
        )


RULES: tuple[Rule, ...] = (
    Rule(texts_are_as_long_as_trained, "model"),
    Rule(encoders_see_whole_texts, "model"),
    Rule(pooling_has_no_drafts, "model"),
    Rule(pooling_is_implied, "model"),
    Rule(keys_of_the_pooler_pool, "model"),
    Rule(rerankers_may_generate, "model"),
    Rule(io_processors_are_of_models_that_pool, "model"),
)
