"""Checks of attention backends: values, honesty of what is claimed, ownership of the cache, equal bits.

Owns: those checks. Never does: know a layout; the reference is `core.testing.reference`. Called by: `core.testing.suite`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

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
    dense_attention,
)

TOLERANCES = {"float32": 5e-5, "float16": 2e-2, "bfloat16": 3e-2}
HEAD_SIZES, BLOCK_SIZES, DTYPES = (64, 32, 80, 128), (16, 1, 8, 128), ("float32", "bfloat16", "float16")
LENGTHS = (23, 1, 45)
VARIANTS = {
    "plain heads": {"num_heads": 4, "num_kv_heads": 4},
    "grouped heads": {"num_heads": 6, "num_kv_heads": 2},
    "one key-value head": {"num_heads": 3, "num_kv_heads": 1},
    "a window": {"num_heads": 4, "num_kv_heads": 2, "window": 9},
    "a window of one": {"num_heads": 4, "num_kv_heads": 2, "window": 1},
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
FEATURES = ("window", "cap", "sinks", "alibi")
LISTED = ("layer_kinds", "kv_dtypes", "head_sizes", "block_sizes")
Cached = AttentionSpec | LatentSpec


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
            if not (isinstance(reason, Reason) and reason.code and reason.required):
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
    declared = subject.manifest.spec.capabilities
    unserved = {f"{name} {value}" for name in LISTED for value in declared.get(name, ())} - {"layer_kinds state"}
    unserved |= {name for name in FEATURES if declared.get(name) is True}
    unknown = set(declared.get("kv_dtypes", ())) - set(KV_TYPES)
    if unknown:
        raise Failure(f"declares the KV dtype '{min(unknown)}', which nobody can choose; known: {', '.join(KV_TYPES)}")
    reasons: list[Reason] = []
    for _, spec, block_size, dtype in _combinations(subject):
        found = _reasons(subject, spec, block_size, dtype)
        reasons += found
        if found:
            continue
        unserved -= {f"layer_kinds {spec.kind}", f"kv_dtypes {dtype}", f"block_sizes {block_size}"}
        if isinstance(spec, AttentionSpec):
            unserved -= {f"head_sizes {spec.head_size}", *(name for name in FEATURES if getattr(spec, name))}
    if unserved:
        why = "; ".join(dict.fromkeys(str(reason) for reason in reasons))
        raise Failure(f"declares {', '.join(sorted(unserved))} but refuses every layer with it: {why}")


def chunks_equal_whole(subject: Subject) -> None:
    """Prompts in chunks, then one token after the other, equal the whole prompt at once."""
    variants = "grouped heads", "a window", "sinks and a window", "slopes, sinks and a soft cap"
    for variant, spec, block_size, dtype in _ordinary(subject, *variants):
        for chunk in (1, 7):
            _compare(subject, f"{variant}, chunks of {chunk}", spec, block_size, dtype, chunk)


def prefixes_of_the_same_step(subject: Subject) -> None:
    """A sequence may read keys and values that another one of the same step writes."""
    for what, spec, block_size, dtype in _ordinary(subject):
        random, like, shared = generator("shared"), as_attention(spec), 2 * block_size
        first, second = (Conversation.random(shared + n, spec, dtype, random) for n in (9, 5))
        for mine, other in zip((first.k, first.v, *first.held), (second.k, second.v, *second.held), strict=True):
            other[:shared] = mine[:shared]
        run = PagedRun(subject.loaded, spec, block_size, dtype, [second, first], random)
        run.tables[0][:2] = run.tables[1][:2]
        got = run.step([5, len(first.k)], [len(second.k), len(first.k)])[0]
        expected = dense_attention(second.q[shared:], *second.held, like, run.params)
        label = f"{what}: a prefix of {shared} tokens that another sequence of the step writes"
        close(got, expected, TOLERANCES.get(dtype, 5e-2), label, axis=-1)


def writes_only_its_slots(subject: Subject) -> None:
    """write changes the blocks of its own slots and no other byte of the cache."""
    for what, spec, block_size, dtype in _ordinary(subject):
        random = generator("slots")
        conversations = [Conversation.random(5, spec, dtype, random) for _ in range(3)]
        run = PagedRun(subject.loaded, spec, block_size, dtype, conversations, random)
        before = run.raw.clone()
        view = batch_view([5], [5], [run.tables[1]], block_size)
        run.write(conversations[1].k, conversations[1].v, subject.loaded.build(view))
        changed = {int(block) for block in (run.raw != before).any(1).nonzero().flatten()}
        foreign = changed - set(run.tables[1])
        if foreign:
            raise Failure(f"{what}: a write changed block {min(foreign)}, which belongs to another sequence")
        if not changed:
            raise Failure(f"{what}: a write changed nothing; attention must read only the cache that it was given")


def padding_changes_nothing(subject: Subject) -> None:
    """With `padding`: rows and sequences behind those of a step change no bit of it and no byte of the cache."""
    if not subject.manifest.spec.capabilities.get("padding", False):
        raise Skipped("it does not declare padding; a device's recordings then serve steps of exactly their size")
    captured = getattr(subject.loaded, "capture", "never")
    for what, spec, block_size, dtype in _ordinary(
        subject, "grouped heads", "a window", "slopes, sinks and a soft cap"
    ):
        for chunk in (0, 1, 7):
            paddings = [Padding()]
            if captured == "any" or (captured == "uniform" and chunk == 1):
                paddings.append(Padding(bare=True))
            for padding in paddings:
                _compare_padded(
                    subject, f"{what}, chunks of {chunk or 'any length'}", spec, block_size, dtype, chunk, padding
                )


def layout_is_planned(subject: Subject) -> None:
    """A block takes no more bytes than the memory plan counts for it."""
    for what, spec, block_size, dtype in _combinations(subject):
        if _reasons(subject, spec, block_size, dtype):
            continue
        told, planned = (
            subject.loaded.kv_layout(spec, block_size, dtype).block_bytes,
            block_bytes([spec], block_size, dtype),
        )
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
    kinds = {*layer_kinds(subject.manifest.spec.capabilities)} - {"state"}
    claimed = {kind for kind in kinds if promises(subject.manifest, "fast", kind)}
    if not claimed:
        raise Skipped("it does not claim batch_invariant; `core config explain` says so to users")
    for what, spec, block_size, _ in _ordinary(subject, "grouped heads", "a window"):
        for dtype in _choices(subject)[2]:
            if spec.kind in claimed and not _reasons(subject, spec, block_size, dtype):
                _invariant(subject, what, spec, block_size, dtype)


def _invariant(subject: Subject, what: str, spec: Cached, block_size: int, dtype: str) -> None:
    random = generator("invariant")
    mine = Conversation.random(75, spec, dtype, random)
    others = [Conversation.random(n, spec, dtype, random) for n in (3, 50)]
    alone = PagedRun(subject.loaded, spec, block_size, dtype, [mine], random).all()[0]
    company = PagedRun(subject.loaded, spec, block_size, dtype, [others[0], mine, others[1]], random).all()[1]
    same_bits(company, alone, f"{what}: a sequence in a batch, compared with alone, in {dtype}")
    for chunk in (1, 16):
        chunked = PagedRun(subject.loaded, spec, block_size, dtype, [mine], random).all(chunk)[0]
        same_bits(chunked, alone, f"{what}: a prompt in chunks of {chunk}, compared with at once, in {dtype}")
    for other in BLOCK_SIZES:
        if not _reasons(subject, spec, other, dtype):
            resized = PagedRun(subject.loaded, spec, other, dtype, [mine], random).all()[0]
            same_bits(resized, alone, f"{what}: blocks of {other} tokens, compared with {block_size}, in {dtype}")


def _keyed(check: Callable[[Subject], None]) -> Callable[[Subject], None]:
    """The check, for backends that serve layers with keys and values."""

    @functools.wraps(check)
    def run(subject: Subject) -> None:
        kinds = layer_kinds(subject.manifest.spec.capabilities)
        if set(kinds) == {"state"}:
            raise Skipped("it serves layers with a state only (capability layer_kinds)")
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
)
CHECKS = (*map(_keyed, KEYED), *states.CHECKS)


def _reasons(subject: Subject, spec: Cached, block_size: int, dtype: str) -> list[Reason]:
    """As selection asks: capabilities first, then the plugin."""
    query = AttentionQuery(spec, subject.device, dtype, block_size)
    return attention_reasons(subject.manifest.spec, query) or list(subject.manifest.call("core_supports", query=query))


def _combinations(subject: Subject) -> Iterator[tuple[str, Cached, int, str]]:
    """Each layer variant once, and each head size, block size and dtype once with grouped heads and with latents."""
    head, block, dtype = _usual(subject)
    sizes, blocks, dtypes = _choices(subject)
    for what, extra in VARIANTS.items():
        yield what, AttentionSpec(head_size=head, head_size_v=head, scale=head**-0.5, **extra), block, dtype  # type: ignore[arg-type]
    for size in sizes:
        yield f"head size {size}", AttentionSpec(6, 2, size, size, size**-0.5), block, dtype
    for what, latent in LATENTS.items():
        yield what, latent, block, dtype
    usual: dict[str, Cached] = {"": AttentionSpec(6, 2, head, head, head**-0.5), " of latents": LATENTS["latents"]}
    for what, spec in usual.items():
        for size in blocks:
            yield f"blocks of {size}{what}", spec, size, dtype
        for other in dtypes:
            yield f"a cache of {other}{what}", spec, block, other


def _choices(subject: Subject) -> tuple[Sequence[int], Sequence[int], Sequence[str]]:
    """Head sizes, block sizes and KV dtypes: those that it declares, or some of each."""
    declared = subject.manifest.spec.capabilities
    return (
        declared.get("head_sizes") or HEAD_SIZES,
        declared.get("block_sizes") or BLOCK_SIZES,
        declared.get("kv_dtypes") or DTYPES,
    )


def _usual(subject: Subject) -> tuple[int, int, str]:
    sizes, blocks, dtypes = _choices(subject)
    return sizes[0], 16 if 16 in blocks else blocks[0], "float32" if "float32" in dtypes else dtypes[0]


def _ordinary(subject: Subject, *variants: str) -> Iterator[tuple[str, Cached, int, str]]:
    """What it serves of some variants (grouped heads when none is named), and the first that it serves of the latents."""
    head, block, dtype = _usual(subject)
    for variant in variants or ("grouped heads",):
        spec = AttentionSpec(head_size=head, head_size_v=head, scale=head**-0.5, **VARIANTS[variant])  # type: ignore[arg-type]
        if not _reasons(subject, spec, block, dtype):
            yield variant, spec, block, dtype
    for what, latent in LATENTS.items():
        if not _reasons(subject, latent, block, dtype):
            yield what, latent, block, dtype
            return


def _compare(subject: Subject, what: str, spec: Cached, block_size: int, dtype: str, chunk: int) -> None:
    random, like = generator(what), as_attention(spec)
    conversations = [Conversation.random(n, spec, dtype, random) for n in LENGTHS]
    run = PagedRun(subject.loaded, spec, block_size, dtype, conversations, random)
    for number, (c, got) in enumerate(zip(conversations, run.all(chunk), strict=True)):
        numbers = f"head size {like.head_size}, blocks of {block_size} in {dtype}"
        label = f"{what}, {numbers}, sequence {number} of {len(c.k)} tokens"
        expected = dense_attention(c.q, *c.held, like, run.params)
        close(got, expected, TOLERANCES.get(dtype, 5e-2), label, axis=-1)


def _compare_padded(
    subject: Subject, what: str, spec: Cached, block_size: int, dtype: str, chunk: int, padding: Padding
) -> None:
    random = generator(what)
    conversations = [Conversation.random(n, spec, dtype, random) for n in LENGTHS]
    runs = [
        PagedRun(subject.loaded, spec, block_size, dtype, conversations, generator("tables"), own)
        for own in (NO_PADDING, padding)
    ]
    expected, outs = (run.all(chunk) for run in runs)
    label = f"{what}: a step with {padding.rows} padded rows and {padding.sequences} padded sequences"
    for got, wanted in zip(outs, expected, strict=True):
        same_bits(got, wanted, label)
    same_bits(runs[1].raw, runs[0].raw, f"{label}: the cache")
