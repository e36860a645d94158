"""Checks of attention backends: values, honesty of what is claimed, ownership of the cache, equal bits.

Owns: those checks. Never does: know a layout; the reference is `core.testing.reference`. Called by: `core.testing.suite`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from core.api.reason import Reason
from core.api.specs import KV_TYPES, AttentionQuery, AttentionSpec, LatentSpec
from core.config.memory import block_bytes
from core.config.waivers import promises
from core.plugin.capabilities import attention_reasons, layer_kinds
from core.testing import states
from core.testing.case import Failure, Skipped, Subject
from core.testing.numbers import close, generator, same_bits
from core.testing.padding import NO_PADDING, Padding
from core.testing.reference import (
    Conversation,
    PagedRun,
    as_attention,
    batch_view,
    changed_blocks,
    dense_attention,
)
from core.testing.trees import compared_rows

TOLERANCES = {"float32": 5e-5, "float16": 2e-2, "bfloat16": 3e-2}
HEAD_SIZES = (64, 32, 80, 128)
BLOCK_SIZES = (16, 1, 8, 128)
DTYPES = ("float32", "bfloat16", "float16")
LENGTHS = (23, 1, 45)
VARIANTS: dict[str, dict[str, Any]] = {
    "plain heads": {"num_heads": 4, "num_kv_heads": 4},
    "grouped heads": {"num_heads": 6, "num_kv_heads": 2},
    "one key-value head": {"num_heads": 3, "num_kv_heads": 1},
    "a window": {"num_heads": 4, "num_kv_heads": 2, "window": 9},
    "a window of one": {"num_heads": 4, "num_kv_heads": 2, "window": 1},
    "a window in chunks": {"num_heads": 4, "num_kv_heads": 2, "window": 9, "chunked": True},
    "a soft cap": {"num_heads": 4, "num_kv_heads": 2, "cap": 5.0},
    "a window and a soft cap": {"num_heads": 4, "num_kv_heads": 2, "window": 20, "cap": 10.0},
    "sinks": {"num_heads": 4, "num_kv_heads": 2, "sinks": True},
    "sinks and a window": {"num_heads": 6, "num_kv_heads": 2, "sinks": True, "window": 9},
    "slopes": {"num_heads": 6, "num_kv_heads": 2, "alibi": True},
    "slopes, sinks and a soft cap": {"num_heads": 4, "num_kv_heads": 4, "alibi": True, "sinks": True, "cap": 5.0},
}
"""Kinds of layers that a backend is tried with; a new member of AttentionSpec is one more row."""
LATENTS = {
    "latents": LatentSpec(num_heads=4, rank=32, rope_size=16, head_size_nope=24, head_size_v=24, scale=0.16),
    "latents of one head": LatentSpec(1, rank=64, rope_size=64, head_size_nope=64, head_size_v=64, scale=0.09),
    "latents of DeepSeek-V3": LatentSpec(16, rank=512, rope_size=64, head_size_nope=128, head_size_v=128, scale=0.07),
}
"""The same for latent layers."""
FEATURES = ("window", "cap", "sinks", "alibi", "chunked")
LISTED = ("layer_kinds", "kv_dtypes", "head_sizes", "block_sizes")
Cached = AttentionSpec | LatentSpec
MISSING = "missing_library"
"""The code of a reason: what a plugin calls is not installed."""


def claims_are_true(subject: Subject) -> None:
    """Whatever it claims to support equals attention as the formula says: head sizes, block sizes, dtypes, layers."""
    tried = 0
    for what, spec, block_size, dtype in _combinations(subject):
        if _reasons(subject, spec, block_size, dtype):
            continue
        tried += 1
        _compare(subject, what, spec, block_size, dtype, chunk=0)
    if not tried:
        raise Failure("it refuses everything that it was asked; no ordinary layer can use it")


def refusals_have_reasons(subject: Subject) -> None:
    """Whatever it does not support is refused with a reason, before anything is built."""
    latent = LATENTS["latents"]
    strange: list[tuple[Cached, int, str]] = [
        (AttentionSpec(4, 2, 7, 7, 0.5), 16, "float32"),
        (AttentionSpec(4, 2, 64, 32, 0.125), 16, "float32"),
        (AttentionSpec(4, 2, 64, 64, 0.125), 16, "no_such_dtype"),
        (AttentionSpec(4, 2, 64, 64, 0.125), 3, "float32"),
        (LatentSpec(3, rank=10, rope_size=6, head_size_nope=6, head_size_v=6, scale=0.3), 16, "float32"),
        (latent, 16, "no_such_dtype"),
        (latent, 3, "float32"),
    ]
    odd = [("an odd layer", *case) for case in strange]
    for number, (what, spec, block_size, dtype) in enumerate([*odd, *_combinations(subject)]):
        reasons = _reasons(subject, spec, block_size, dtype)
        for reason in reasons:
            complete = isinstance(reason, Reason) and reason.code and reason.required
            if not complete:
                raise Failure(f"{what}: refused without a complete Reason: {reason!r}")
        if not reasons and dtype == "no_such_dtype":
            raise Failure("it does not refuse a cache of dtype 'no_such_dtype'; declare kv_dtypes")
        if not reasons and number < len(odd):
            try:
                _compare(subject, what, spec, block_size, dtype, chunk=0)
            except Failure as failure:
                raise Failure(f"{failure}; it neither serves this nor refuses it with a Reason") from None


def serves_what_it_declares(subject: Subject) -> None:
    """Every feature, layer kind, KV dtype, head size and block size that it declares is served for some layer."""
    # whether ops of layers with a state are served, `core.testing.states` finds
    unknown = set(subject.manifest.spec.capabilities.get("kv_dtypes", ())) - set(KV_TYPES)
    if unknown:
        raise Failure(f"declares the KV dtype '{min(unknown)}', which nobody can choose; known: {', '.join(KV_TYPES)}")
    unserved = _declared(subject)
    sentences: dict[str, None] = {}  # an ordered set
    for _, spec, block_size, dtype in _combinations(subject):
        reasons = _reasons(subject, spec, block_size, dtype)
        if reasons:
            sentences.update(dict.fromkeys(map(str, reasons)))
            continue
        unserved -= _shown(spec, block_size, dtype)
    if unserved:
        names = ", ".join(sorted(unserved))
        raise Failure(f"declares {names} but refuses every layer with it: {'; '.join(sentences)}")


def _declared(subject: Subject) -> set[str]:
    """Everything that it declares and that a layer with keys and values can show, each as `capability value`."""
    capabilities = subject.manifest.spec.capabilities
    declared = {name for name in FEATURES if capabilities.get(name) is True}
    for name in LISTED:
        for value in capabilities.get(name, ()):
            declared.add(f"{name} {value}")
    declared.discard("layer_kinds state")
    return declared


def _shown(spec: Cached, block_size: int, dtype: str) -> set[str]:
    """The part of those declarations that a backend proves by serving this layer."""
    shown = {f"layer_kinds {spec.kind}", f"kv_dtypes {dtype}", f"block_sizes {block_size}"}
    if isinstance(spec, AttentionSpec):
        shown.add(f"head_sizes {spec.head_size}")
        shown |= {name for name in FEATURES if getattr(spec, name)}
    return shown


def chunks_equal_whole(subject: Subject) -> None:
    """Prompts in chunks, then one token after the other, equal the whole prompt at once."""
    variants = "grouped heads", "a window", "a window in chunks", "sinks and a window", "slopes, sinks and a soft cap"
    for variant, spec, block_size, dtype in _ordinary(subject, *variants):
        for chunk in (1, 7):
            _compare(subject, f"{variant}, chunks of {chunk}", spec, block_size, dtype, chunk)


def prefixes_of_the_same_step(subject: Subject) -> None:
    """A sequence may read keys and values that another one of the same step writes."""
    for what, spec, block_size, dtype in _ordinary(subject):
        random = generator("shared")
        shared = 2 * block_size
        first = Conversation.random(shared + 9, spec, dtype, random)
        second = Conversation.random(shared + 5, spec, dtype, random)
        first_held_k, first_held_v = first.held
        held_k, held_v = second.held
        second.k[:shared] = first.k[:shared]
        second.v[:shared] = first.v[:shared]
        held_k[:shared] = first_held_k[:shared]
        held_v[:shared] = first_held_v[:shared]

        run = PagedRun(subject.loaded, spec, block_size, dtype, [second, first], random)
        run.tables[0][:2] = run.tables[1][:2]
        got, _ = run.step([5, len(first.k)], [len(second.k), len(first.k)])
        expected = dense_attention(second.q[shared:], held_k, held_v, as_attention(spec), run.params)
        label = f"{what}: a prefix of {shared} tokens that another sequence of the step writes"
        close(got, expected, _tolerance(dtype), label, axis=-1)


def writes_only_its_slots(subject: Subject) -> None:
    """write changes the blocks of its own slots and no other byte of the cache."""
    for what, spec, block_size, dtype in _ordinary(subject):
        random = generator("slots")
        conversations = [Conversation.random(5, spec, dtype, random) for _ in range(3)]
        run = PagedRun(subject.loaded, spec, block_size, dtype, conversations, random)
        before = run.raw.clone()
        writer = conversations[1]
        table = run.tables[1]
        view = batch_view([5], [5], [table], block_size)
        run.write(writer.k, writer.v, subject.loaded.build(view))
        changed = changed_blocks(run.raw, before)
        foreign = changed.difference(table)
        if foreign:
            raise Failure(f"{what}: a write changed block {min(foreign)}, which belongs to another sequence")
        if not changed:
            raise Failure(f"{what}: a write changed nothing; attention must read only the cache that it was given")


def padding_changes_nothing(subject: Subject) -> None:
    """With `padding`: rows and sequences behind those of a step change no bit of it and no byte of the cache."""
    if not subject.manifest.spec.capabilities.get("padding", False):
        raise Skipped("it does not declare padding; a device's recordings then serve steps of exactly their size")
    captured = getattr(subject.loaded, "capture", "never")
    variants = "grouped heads", "a window", "slopes, sinks and a soft cap"
    for variant, spec, block_size, dtype in _ordinary(subject, *variants):
        for chunk in (0, 1, 7):
            what = f"{variant}, chunks of {chunk or 'any length'}"
            _compare_padded(subject, what, spec, block_size, dtype, chunk, Padding())
            if captured == "any" or (captured == "uniform" and chunk == 1):
                _compare_padded(subject, what, spec, block_size, dtype, chunk, Padding(bare=True))


def layout_is_planned(subject: Subject) -> None:
    """A block takes no more bytes than the memory plan counts for it."""
    for what, spec, block_size, dtype in _combinations(subject):
        if _reasons(subject, spec, block_size, dtype):
            continue
        told = subject.loaded.kv_layout(spec, block_size, dtype).block_bytes
        planned = block_bytes([spec], block_size, dtype)
        if not 0 < told <= planned:
            raise Failure(
                f"{what}: kv_layout tells {told} bytes a block of {block_size} tokens in {dtype}, the plan {planned}"
            )


def same_step_same_bits(subject: Subject) -> None:
    """The same step twice gives the same bits, and leaves q, k and v alone."""
    for what, spec, block_size, dtype in _ordinary(subject):
        outs = []
        for _ in range(2):
            random = generator("twice")
            conversation = Conversation.random(40, spec, dtype, random)
            run = PagedRun(subject.loaded, spec, block_size, dtype, [conversation], random)
            outs.append(run.all()[0])
            if run.changed:
                raise Failure(f"{what}: a step changed {' and '.join(sorted(run.changed))}, which the core still needs")
        same_bits(outs[1], outs[0], f"{what}: the same step again")


def batch_invariant_as_claimed(subject: Subject) -> None:
    """With `batch_invariant`: a sequence's bits depend on nothing but itself: company, chunks, block size."""
    kinds = layer_kinds(subject.manifest.spec.capabilities)
    claimed = {kind for kind in kinds if kind != "state" and promises(subject.manifest, "fast", kind)}
    if not claimed:
        raise Skipped("it does not claim batch_invariant; `core config explain` says so to users")
    _, _, dtypes = _choices(subject)
    for what, spec, block_size, _ in _ordinary(subject, "grouped heads", "a window"):
        if spec.kind not in claimed:
            continue
        for dtype in dtypes:
            if not _reasons(subject, spec, block_size, dtype):
                _invariant(subject, what, spec, block_size, dtype)


def _invariant(subject: Subject, what: str, spec: Cached, block_size: int, dtype: str) -> None:
    random = generator("invariant")
    mine = Conversation.random(75, spec, dtype, random)
    short = Conversation.random(3, spec, dtype, random)
    long = Conversation.random(50, spec, dtype, random)
    (alone,) = PagedRun(subject.loaded, spec, block_size, dtype, [mine], random).all()
    batch = PagedRun(subject.loaded, spec, block_size, dtype, [short, mine, long], random)
    _, company, _ = batch.all()
    same_bits(company, alone, f"{what}: a sequence in a batch, compared with alone, in {dtype}")
    for chunk in (1, 16):
        (chunked,) = PagedRun(subject.loaded, spec, block_size, dtype, [mine], random).all(chunk)
        same_bits(chunked, alone, f"{what}: a prompt in chunks of {chunk}, compared with at once, in {dtype}")
    for other in BLOCK_SIZES:
        if not _reasons(subject, spec, other, dtype):
            (resized,) = PagedRun(subject.loaded, spec, other, dtype, [mine], random).all()
            same_bits(resized, alone, f"{what}: blocks of {other} tokens, compared with {block_size}, in {dtype}")


def trees_equal_chains(subject: Subject) -> None:
    """With `tree`: the rows of a tree of drafts see what the same rows of chains see, also when they have been moved."""
    if not subject.manifest.spec.capabilities.get("tree", False):
        raise Skipped("it does not declare tree; drafts are then verified as chains")
    _, blocks, dtypes = _choices(subject)
    variants = "grouped heads", "a window", "a window in chunks", "slopes, sinks and a soft cap"
    for what, spec, usual, dtype in _ordinary(subject, *variants):
        tried = {(usual, dtype)}
        if what == "grouped heads" or what in LATENTS:
            tried |= {(usual, other) for other in dtypes} | {(size, dtype) for size in blocks}
        for block_size, kv_dtype in sorted(tried):
            if not _reasons(subject, spec, block_size, kv_dtype):
                _compare_tree(subject, what, spec, block_size, kv_dtype)


def _compare_tree(subject: Subject, what: str, spec: Cached, block_size: int, dtype: str) -> None:
    is_exact = promises(subject.manifest, "fast", spec.kind)
    for row, got, expected in compared_rows(subject.loaded, spec, block_size, dtype, generator("tree")):
        label = f"{what}: {row}, in a tree, compared with a chain, in blocks of {block_size} in {dtype}"
        if is_exact:
            same_bits(got, expected, label)
        else:
            close(got, expected, _tolerance(dtype), label)


def _keyed(check: Callable[[Subject], None]) -> Callable[[Subject], None]:
    """The check, for backends that serve layers with keys and values."""

    @functools.wraps(check)
    def run(subject: Subject) -> None:
        kinds = layer_kinds(subject.manifest.spec.capabilities)
        if set(kinds) == {"state"}:
            raise Skipped("it serves layers with a state only (capability layer_kinds)")
        _skip_without_library(subject)
        check(subject)

    return run


KEYED = (
    claims_are_true,
    refusals_have_reasons,
    serves_what_it_declares,
    chunks_equal_whole,
    prefixes_of_the_same_step,
    writes_only_its_slots,
    padding_changes_nothing,
    layout_is_planned,
    same_step_same_bits,
    batch_invariant_as_claimed,
    trees_equal_chains,
)
CHECKS = (*map(_keyed, KEYED), *states.CHECKS)


def _skip_without_library(subject: Subject) -> None:
    """Raises Skipped where the plugin says that what it calls is not installed."""
    head, block, dtype = _usual(subject)
    for reason in _reasons(subject, _grouped(head), block, dtype):
        if reason.code == MISSING:
            raise Skipped(f"{reason}; run the check where there is one")


def _reasons(subject: Subject, spec: Cached, block_size: int, dtype: str) -> list[Reason]:
    """As selection asks: capabilities first, then the plugin."""
    query = AttentionQuery(spec, subject.device, dtype, block_size)
    declared = attention_reasons(subject.manifest.spec, query)
    return declared or list(subject.manifest.call("core_supports", query=query))


def _combinations(subject: Subject) -> Iterator[tuple[str, Cached, int, str]]:
    """Each layer variant once, and each head size, block size and dtype once with grouped heads and with latents."""
    head, block, dtype = _usual(subject)
    sizes, blocks, dtypes = _choices(subject)
    for what in VARIANTS:
        yield what, _variant(what, head), block, dtype
    for size in sizes:
        yield f"head size {size}", _grouped(size), block, dtype
    for what, latent in LATENTS.items():
        yield what, latent, block, dtype
    usual: dict[str, Cached] = {"": _grouped(head), " of latents": LATENTS["latents"]}
    for what, spec in usual.items():
        for size in blocks:
            yield f"blocks of {size}{what}", spec, size, dtype
        for other in dtypes:
            yield f"a cache of {other}{what}", spec, block, other


def _choices(subject: Subject) -> tuple[Sequence[int], Sequence[int], Sequence[str]]:
    """Head sizes, block sizes and KV dtypes: as it declares them, or some of each."""
    declared = subject.manifest.spec.capabilities
    sizes = declared.get("head_sizes") or HEAD_SIZES
    blocks = declared.get("block_sizes") or BLOCK_SIZES
    dtypes = declared.get("kv_dtypes") or DTYPES
    return sizes, blocks, dtypes


def _usual(subject: Subject) -> tuple[int, int, str]:
    """A head size, a block size and a KV dtype: the plainest ones of its choices."""
    sizes, blocks, dtypes = _choices(subject)
    block = 16 if 16 in blocks else blocks[0]
    dtype = "float32" if "float32" in dtypes else dtypes[0]
    return sizes[0], block, dtype


def _variant(name: str, head_size: int) -> AttentionSpec:
    """A layer of VARIANTS."""
    return AttentionSpec(head_size=head_size, head_size_v=head_size, scale=head_size**-0.5, **VARIANTS[name])


def _grouped(head_size: int) -> AttentionSpec:
    """The layer with grouped heads."""
    return _variant("grouped heads", head_size)


def _tolerance(dtype: str) -> float:
    """The largest error allowed with a KV dtype."""
    return TOLERANCES.get(dtype, 5e-2)


def _ordinary(subject: Subject, *variants: str) -> Iterator[tuple[str, Cached, int, str]]:
    """The variants named (grouped heads when none is) that it serves, and the first of the latents that it serves."""
    head, block, dtype = _usual(subject)
    for variant in variants or ("grouped heads",):
        spec = _variant(variant, head)
        if not _reasons(subject, spec, block, dtype):
            yield variant, spec, block, dtype
    for what, latent in LATENTS.items():
        if not _reasons(subject, latent, block, dtype):
            yield what, latent, block, dtype
            return


def _compare(subject: Subject, what: str, spec: Cached, block_size: int, dtype: str, chunk: int) -> None:
    random = generator(what)
    like = as_attention(spec)
    conversations = [Conversation.random(n, spec, dtype, random) for n in LENGTHS]
    run = PagedRun(subject.loaded, spec, block_size, dtype, conversations, random)
    outs = run.all(chunk)
    numbers = f"head size {like.head_size}, blocks of {block_size} in {dtype}"
    for number, conversation in enumerate(conversations):
        label = f"{what}, {numbers}, sequence {number} of {len(conversation.k)} tokens"
        held_k, held_v = conversation.held
        expected = dense_attention(conversation.q, held_k, held_v, like, run.params)
        close(outs[number], expected, _tolerance(dtype), label, axis=-1)


def _compare_padded(
    subject: Subject, what: str, spec: Cached, block_size: int, dtype: str, chunk: int, padding: Padding
) -> None:
    random = generator(what)
    conversations = [Conversation.random(n, spec, dtype, random) for n in LENGTHS]

    def run(own: Padding) -> PagedRun:
        # the same blocks for both, since their caches are compared
        return PagedRun(subject.loaded, spec, block_size, dtype, conversations, generator("tables"), own)

    plain = run(NO_PADDING)
    padded = run(padding)
    label = f"{what}: a step with {padding.rows} padded rows and {padding.sequences} padded sequences"
    for got, expected in zip(padded.all(chunk), plain.all(chunk), strict=True):
        same_bits(got, expected, label)
    same_bits(padded.raw, plain.raw, f"{label}: the cache")
