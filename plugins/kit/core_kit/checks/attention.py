"""Checks of attention backends: values, ownership of the cache, equal bits.

Owns: the checks, and the list of all checks of a backend. Never does: know a layout. Called by: `core_kit.suite`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from core.api.specs import AttentionSpec
from core.plugin.capabilities import layer_kinds
from core_config.selection.reasons import promises
from core_kit.case import Failure, Skipped, Subject
from core_kit.checks import given_states, states
from core_kit.checks.attention_claims import (
    claims_are_true,
    layers_may_lie_in_one_block,
    layout_is_planned,
    refusals_have_reasons,
    serves_what_it_declares,
)
from core_kit.checks.attention_index import keys_are_chosen_by_the_index
from core_kit.fixtures.attention_cases import (
    BLOCK_SIZES,
    LATENTS,
    LENGTHS,
    Cached,
    choices,
    compare,
    grouped,
    ordinary,
    reasons_of,
    tolerance,
    usual,
)
from core_kit.oracles.numbers import close, generator, same_bits
from core_kit.oracles.padding import NO_PADDING, Padding
from core_kit.oracles.reference import Conversation, PagedRun, as_attention, batch_view, changed_blocks, dense_attention
from core_kit.oracles.trees import compared_rows
from core_kit.oracles.turning import both_ways, turns
from core_runtime.contracts import TurnsHeads

MISSING: Final = "missing_library"
"""Code of the reason that a library needed by the plugin is not installed."""
COMPANY: Final = (75, 3, 50)
"""Lengths of sequences in a batch; the bits of the first are compared."""


def chunks_equal_whole(subject: Subject) -> None:
    """Prompts in chunks, then one token after the other, equal the whole prompt at once."""
    variants = "grouped heads", "a window", "a window in chunks", "sinks and a window", "slopes, sinks and a soft cap"
    for variant, spec, block_size, dtype in ordinary(subject, *variants):
        for chunk in (1, 7):
            compare(subject, f"{variant}, chunks of {chunk}", spec, block_size, dtype, chunk)


def prefixes_of_the_same_step(subject: Subject) -> None:
    """A sequence may read keys and values that another one of the same step writes."""
    for what, spec, block_size, dtype in ordinary(subject):
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
        close(got, expected, tolerance(dtype), label, axis=-1)


def writes_only_its_slots(subject: Subject) -> None:
    """write changes the blocks of its own slots and no other byte of the cache."""
    for what, spec, block_size, dtype in ordinary(subject):
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
    for variant, spec, block_size, dtype in ordinary(subject, *variants):
        for chunk in (0, 1, 7):
            what = f"{variant}, chunks of {chunk or 'any length'}"
            _compare_padded(subject, what, spec, block_size, dtype, chunk, Padding())
            if captured == "any" or (captured == "uniform" and chunk == 1):
                _compare_padded(subject, what, spec, block_size, dtype, chunk, Padding(bare=True))


def _compare_padded(
    subject: Subject, what: str, spec: Cached, block_size: int, dtype: str, chunk: int, padding: Padding
) -> None:
    random = generator(what)
    conversations = [Conversation.random(n, spec, dtype, random) for n in LENGTHS]

    def run(own: Padding) -> PagedRun:
        # both use the same blocks, since their caches are compared
        return PagedRun(subject.loaded, spec, block_size, dtype, conversations, generator("tables"), own)

    plain = run(NO_PADDING)
    padded = run(padding)
    label = f"{what}: a step with {padding.rows} padded rows and {padding.sequences} padded sequences"
    for got, expected in zip(padded.all(chunk), plain.all(chunk), strict=True):
        same_bits(got, expected, label)
    same_bits(padded.raw, plain.raw, f"{label}: the cache")


def same_step_same_bits(subject: Subject) -> None:
    """The same step twice gives the same bits, and leaves q, k and v alone."""
    for what, spec, block_size, dtype in ordinary(subject):
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
    claimed = {kind for kind in kinds if kind != "state" and promises(subject.manifest.spec, "fast", kind)}
    if not claimed:
        raise Skipped("it does not claim batch_invariant; `core config explain` says so to users")
    _, _, dtypes = choices(subject)
    for what, spec, block_size, _ in ordinary(subject, "grouped heads", "a window"):
        if spec.kind not in claimed:
            continue
        for dtype in dtypes:
            if not reasons_of(subject, spec, block_size, dtype):
                _invariant(subject, what, spec, block_size, dtype)


def _invariant(subject: Subject, what: str, spec: Cached, block_size: int, dtype: str) -> None:
    random = generator("invariant")
    mine, short, long = (Conversation.random(length, spec, dtype, random) for length in COMPANY)
    (alone,) = PagedRun(subject.loaded, spec, block_size, dtype, [mine], random).all()
    batch = PagedRun(subject.loaded, spec, block_size, dtype, [short, mine, long], random)
    _, company, _ = batch.all()
    same_bits(company, alone, f"{what}: a sequence in a batch, compared with alone, in {dtype}")
    for chunk in (1, 16):
        (chunked,) = PagedRun(subject.loaded, spec, block_size, dtype, [mine], random).all(chunk)
        same_bits(chunked, alone, f"{what}: a prompt in chunks of {chunk}, compared with at once, in {dtype}")
    for other in BLOCK_SIZES:
        if not reasons_of(subject, spec, other, dtype):
            (resized,) = PagedRun(subject.loaded, spec, other, dtype, [mine], random).all()
            same_bits(resized, alone, f"{what}: blocks of {other} tokens, compared with {block_size}, in {dtype}")


SPANS: Final = ((2, 14), (14, 17), (30, 58))
"""Positions [start, stop) that see each other in the check below: longer and shorter than windows and blocks."""


def spans_see_their_end(subject: Subject) -> None:
    """With `spans`: rows see later rows up to `sees_to`, in company and where a step begins within a span."""
    if not subject.manifest.spec.capabilities.get("spans", False):
        raise Skipped("it does not declare spans; models that need them are served as text alone")
    for what, spec, block_size, dtype in ordinary(subject, "grouped heads", "a window", "slopes, sinks and a soft cap"):
        if isinstance(spec, AttentionSpec):
            _compare_spans(subject, what, spec, block_size, dtype)


def _sees_to(length: int) -> Tensor:
    """Return the last position that each token of a prompt sees, of which the spans that fit are spans."""
    found = torch.arange(length)
    for start, stop in SPANS:
        if stop <= length:
            found[start:stop] = stop - 1
    return found


def _compare_spans(subject: Subject, what: str, spec: AttentionSpec, block_size: int, dtype: str) -> None:
    random = generator("spans")
    talks = [Conversation.random(length, spec, dtype, random) for length in COMPANY]
    sees_to = [_sees_to(length) for length in COMPANY]
    run = PagedRun(subject.loaded, spec, block_size, dtype, talks, generator("tables"))
    run.sees_to = sees_to
    outs = run.all()
    for out, talk, seen in zip(outs, talks, sees_to, strict=True):
        expected = dense_attention(talk.q, *talk.held, spec, run.params, seen)
        close(out, expected, tolerance(dtype), f"{what}: spans in {dtype}", axis=-1)
    alone = PagedRun(subject.loaded, spec, block_size, dtype, talks[:1], generator("tables"))
    alone.sees_to = sees_to
    first, whole = SPANS[1][1], len(talks[0].k)
    # Again from within a span on, as after a hit in the prefix cache.
    again = whole - sum(next(span for span in reversed(SPANS) if span[1] <= whole)) // 2
    parts = [*alone.step([first], [first]), *alone.step([whole - first], [whole]), *alone.step([again], [whole])]
    expected = torch.cat([outs[0], outs[0][-again:]])
    label = f"{what}: spans in several steps, compared with one step in company, in {dtype}"
    if promises(subject.manifest.spec, "fast", spec.kind):
        same_bits(torch.cat(parts), expected, label)
    else:
        close(torch.cat(parts), expected, tolerance(dtype), label)


def trees_equal_chains(subject: Subject) -> None:
    """With `tree`: the rows of a tree of drafts see what the same rows of chains see, also when they have been moved."""
    if not subject.manifest.spec.capabilities.get("tree", False):
        raise Skipped("it does not declare tree; drafts are then verified as chains")
    _, blocks, dtypes = choices(subject)
    variants = "grouped heads", "a window", "a window in chunks", "slopes, sinks and a soft cap"
    for what, spec, plainest, dtype in ordinary(subject, *variants):
        tried = {(plainest, dtype)}
        if what == "grouped heads" or what in LATENTS:
            tried |= {(plainest, other) for other in dtypes} | {(size, dtype) for size in blocks}
        for block_size, kv_dtype in sorted(tried):
            if not reasons_of(subject, spec, block_size, kv_dtype):
                _compare_tree(subject, what, spec, block_size, kv_dtype)


def _compare_tree(subject: Subject, what: str, spec: Cached, block_size: int, dtype: str) -> None:
    is_exact = promises(subject.manifest.spec, "fast", spec.kind)
    for row, got, expected in compared_rows(subject.loaded, spec, block_size, dtype, generator("tree")):
        label = f"{what}: {row}, in a tree, compared with a chain, in blocks of {block_size} in {dtype}"
        if is_exact:
            same_bits(got, expected, label)
        else:
            close(got, expected, tolerance(dtype), label)


def turning_equals_kernels(subject: Subject) -> None:
    """With `TurnsHeads`: norms, rotary embedding and write in one call equal the operations one after the other."""
    if not isinstance(subject.loaded, TurnsHeads):
        raise Skipped("it does not turn heads (`TurnsHeads`); kernels do, before it writes")
    for what, spec, block_size, dtype in ordinary(subject):
        if not isinstance(spec, AttentionSpec):
            continue
        for name, turn in turns(spec, generator("turns")):
            talk = Conversation.random(19, spec, dtype, generator("turned"))
            run = PagedRun(subject.loaded, spec, block_size, dtype, [talk], generator("tables"))
            for part, got, expected in both_ways(subject.loaded, run, turn):
                close(got, expected, tolerance(dtype), f"{what}, {name}: {part}", axis=-1)


def _keyed(check: Callable[[Subject], None]) -> Callable[[Subject], None]:
    """Restrict a check to backends that serve layers with keys and values."""

    @functools.wraps(check)
    def run(subject: Subject) -> None:
        kinds = layer_kinds(subject.manifest.spec.capabilities)
        if set(kinds) == {"state"}:
            raise Skipped("it serves layers with a state only (capability layer_kinds)")
        _skip_without_library(subject)
        check(subject)

    return run


def _skip_without_library(subject: Subject) -> None:
    """Raise Skipped where the plugin says that a library it needs is not installed."""
    head, block, dtype = usual(subject)
    specs: tuple[Cached, ...] = (grouped(head), LATENTS["latents"])
    for reason in [reason for spec in specs for reason in reasons_of(subject, spec, block, dtype)]:
        if reason.code == MISSING:
            raise Skipped(f"{reason}; run the check where there is one")


KEYED = (
    claims_are_true,
    refusals_have_reasons,
    serves_what_it_declares,
    chunks_equal_whole,
    prefixes_of_the_same_step,
    writes_only_its_slots,
    padding_changes_nothing,
    layout_is_planned,
    layers_may_lie_in_one_block,
    same_step_same_bits,
    batch_invariant_as_claimed,
    spans_see_their_end,
    keys_are_chosen_by_the_index,
    trees_equal_chains,
    turning_equals_kernels,
)
CHECKS = (*map(_keyed, KEYED), *states.CHECKS, *given_states.CHECKS)
