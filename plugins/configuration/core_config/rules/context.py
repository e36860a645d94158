"""Rules about context parallelism: ranks with the same heads, which divide keys and values by positions.

Owns: those rules and their order. Called by: the table (`core_config.rules`).
"""

from __future__ import annotations

from typing import Final

from core.api.specs import KV_TYPES, AttentionSpec, LatentSpec, StateSpec
from core.args.schema import flag_of
from core_config.rules.rule import Derive, Facts, Findings, Problem, Rule, Warn

SPAN: Final = 128
"""Keys that attention sums at a time; pieces are whole spans, so that a rank could sum its own."""
LONGEST_BLOCK: Final = 1024
LARGEST_PIECE: Final = (1 << 20) - 4096
"""Bytes of one layer that a rank can show the others at a time."""


def context_divides_ranks(facts: Facts) -> Findings:
    """Ranks of a context group are some of those that share each layer."""
    size, ranks = facts["decode_context_parallel_size"], facts["tensor_parallel_size"]
    if size == 1:
        names = ("cp_kv_cache_interleave_size", "dcp_comm_backend")
        given = [flag_of(name) for name in names if facts.given(name) and facts[name] not in (1, "ag_rs")]
        if given:
            yield Warn(f"{', '.join(given)}: no effect with --decode-context-parallel-size 1.")
    elif ranks % size:
        yield Problem(
            f"--decode-context-parallel-size {size}: divides the ranks of --tensor-parallel-size, which are {ranks}; give a "
            f"divisor of {ranks}, or more ranks."
        )


def blocks_have_a_piece_on_each_rank(facts: Facts) -> Findings:
    """A block has as many tokens as the ranks of a context group store one after the other."""
    size, given = facts["decode_context_parallel_size"], facts["cp_kv_cache_interleave_size"]
    if size == 1:
        return
    piece = SPAN if given in (None, 1) else given  # 1, vLLM's default, leaves the choice to the engine
    if piece % SPAN:
        yield Problem(
            f"--cp-kv-cache-interleave-size {piece}: attention sums {SPAN} keys at a time; give a multiple of {SPAN}, or leave "
            "it out."
        )
        return
    tokens = piece * size
    if tokens > LONGEST_BLOCK:
        yield Problem(
            f"--cp-kv-cache-interleave-size {piece}: a block of --decode-context-parallel-size {size} such pieces has {tokens} "
            f"tokens, expected at most {LONGEST_BLOCK}; lower one of them."
        )
        return
    if facts.given("block_size") and facts["block_size"] != tokens:
        yield Problem(
            f"--block-size {facts['block_size']}: a block has {piece} tokens on each of the {size} ranks of "
            f"--decode-context-parallel-size; give {tokens}, or leave it out."
        )
    yield Derive("block_size", tokens, f"{piece} tokens on each of {size} ranks")


def context_divides_equal_heads(facts: Facts) -> Findings:
    """Only ranks that hold the same heads of keys can divide positions among them."""
    size, ranks = facts["decode_context_parallel_size"], facts["tensor_parallel_size"]
    if size == 1 or facts.spec is None:
        return
    mixers = [mixer for mixer in facts.spec.mixers if not isinstance(mixer, StateSpec)]
    if not mixers:
        yield Problem(f"--decode-context-parallel-size {size}: no layer of the model has keys to divide; leave it out.")
    if any(isinstance(mixer, LatentSpec) and mixer.index is not None for mixer in mixers):
        yield Problem(
            f"--decode-context-parallel-size {size}: layers of the model choose keys by an index, and no rank would have the "
            "scores of all keys; leave it out."
        )
    dtype = facts["kv_cache_dtype"]
    if dtype in KV_TYPES and KV_TYPES[dtype].group:
        yield Problem(
            f"--kv-cache-dtype {dtype}: not with --decode-context-parallel-size {size} yet; leave one of them out."
        )
    for mixer in mixers:
        copies = _copies(mixer, ranks)
        if copies % size:
            heads = mixer.num_kv_heads if isinstance(mixer, AttentionSpec) else 1
            yield Problem(
                f"--decode-context-parallel-size {size}: with --tensor-parallel-size {ranks} each of {heads} heads of keys is "
                f"on {copies} rank{'s' if copies > 1 else ''}, and only ranks with the same heads divide their keys by "
                f"positions. Give --tensor-parallel-size {heads * size}, or leave it out."
            )
            return


def _copies(mixer: AttentionSpec | LatentSpec, ranks: int) -> int:
    """Return how many ranks hold each head of keys; a latent is on all of them."""
    return ranks if isinstance(mixer, LatentSpec) else max(ranks // mixer.num_kv_heads, 1)


RULES: tuple[Rule, ...] = (
    Rule(context_divides_ranks),
    Rule(blocks_have_a_piece_on_each_rank),
    Rule(context_divides_equal_heads, "model"),
)
