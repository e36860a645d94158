"""Checks of the declarations of attention backends: that claims are true, and that refusals have reasons.

Owns: the checks. Never does: know a layout. Called by: `core_kit.checks.attention`.
"""

from __future__ import annotations

from typing import Final

from core.api.reason import Reason
from core.api.specs import KV_TYPES, AttentionSpec, LatentSpec
from core_config.stages.memory import block_bytes
from core_kit.case import Failure, Skipped, Subject
from core_kit.fixtures.attention_cases import LATENTS, LENGTHS, Cached, combinations, compare, reasons_of
from core_kit.oracles.numbers import generator, same_bits
from core_kit.oracles.reference import NAN_BYTE, Conversation, PagedRun

FEATURES: Final = ("window", "cap", "sinks", "alibi", "chunked")
LISTED: Final = ("layer_kinds", "kv_dtypes", "head_sizes", "block_sizes")


def claims_are_true(subject: Subject) -> None:
    """Whatever it claims to support equals attention as the formula says: head sizes, block sizes, dtypes, layers."""
    tried = 0
    for what, spec, block_size, dtype in combinations(subject):
        if reasons_of(subject, spec, block_size, dtype):
            continue
        tried += 1
        compare(subject, what, spec, block_size, dtype, chunk=0)
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
    for number, (what, spec, block_size, dtype) in enumerate([*odd, *combinations(subject)]):
        reasons = reasons_of(subject, spec, block_size, dtype)
        for reason in reasons:
            complete = isinstance(reason, Reason) and reason.code and reason.required
            if not complete:
                raise Failure(f"{what}: refused without a complete Reason: {reason!r}")
        if not reasons and dtype == "no_such_dtype":
            raise Failure("it does not refuse a cache of dtype 'no_such_dtype'; declare kv_dtypes")
        if not reasons and number < len(odd):
            try:
                compare(subject, what, spec, block_size, dtype, chunk=0)
            except Failure as failure:
                raise Failure(f"{failure}; it neither serves this nor refuses it with a Reason") from None


def serves_what_it_declares(subject: Subject) -> None:
    """Every feature, layer kind, KV dtype, head size and block size that it declares is served for some layer."""
    # `core_kit.checks.states` checks whether ops of layers with a state are served
    unknown = set(subject.manifest.spec.capabilities.get("kv_dtypes", ())) - set(KV_TYPES)
    if unknown:
        raise Failure(f"declares the KV dtype '{min(unknown)}', which nobody can choose; known: {', '.join(KV_TYPES)}")
    unserved = _declared(subject)
    sentences: dict[str, None] = {}  # an ordered set
    for _, spec, block_size, dtype in combinations(subject):
        reasons = reasons_of(subject, spec, block_size, dtype)
        if reasons:
            sentences.update(dict.fromkeys(map(str, reasons)))
            continue
        unserved -= _shown(spec, block_size, dtype)
    if unserved:
        names = ", ".join(sorted(unserved))
        raise Failure(f"declares {names} but refuses every layer with it: {'; '.join(sentences)}")


def _declared(subject: Subject) -> set[str]:
    """Return every declaration that a layer with keys and values can prove, each as `capability value`."""
    capabilities = subject.manifest.spec.capabilities
    declared = {name for name in FEATURES if capabilities.get(name) is True}
    for name in LISTED:
        for value in capabilities.get(name, ()):
            declared.add(f"{name} {value}")
    declared.discard("layer_kinds state")
    return declared


def _shown(spec: Cached, block_size: int, dtype: str) -> set[str]:
    """Return the declarations that a backend proves by serving this layer."""
    shown = {f"layer_kinds {spec.kind}", f"kv_dtypes {dtype}", f"block_sizes {block_size}"}
    if isinstance(spec, AttentionSpec):
        shown.add(f"head_sizes {spec.head_size}")
        shown |= {name for name in FEATURES if getattr(spec, name)}
    return shown


def layers_may_lie_in_one_block(subject: Subject) -> None:
    """With `strided`: bits are the same where other layers lie between a layer's blocks, whose bytes stay as they are."""
    if not subject.manifest.spec.capabilities.get("strided", False):
        raise Skipped("it does not declare strided; layers of different sizes then have no groups by window")
    for what, spec, block_size, dtype in combinations(subject):
        if reasons_of(subject, spec, block_size, dtype):
            continue
        runs = []
        for apart in (0, 64):
            random = generator(what)
            conversations = [Conversation.random(n, spec, dtype, random) for n in LENGTHS]
            run = PagedRun(subject.loaded, spec, block_size, dtype, conversations, random, apart=apart)
            runs.append((run, run.all(7)))
        (together, expected), (apart_run, outs) = runs
        label = f"{what}: blocks of {block_size} in {dtype} with other layers between them"
        for got, one in zip(outs, expected, strict=True):
            same_bits(got, one, label)
        same_bits(apart_run.raw, together.raw, f"{label}: the cache")
        if (apart_run.whole[:, :64] != NAN_BYTE).any() or (apart_run.whole[:, -64:] != NAN_BYTE).any():
            raise Failure(f"{label}: bytes of other layers changed")


def layout_is_planned(subject: Subject) -> None:
    """A block takes no more bytes than the memory plan counts for it."""
    for what, spec, block_size, dtype in combinations(subject):
        if reasons_of(subject, spec, block_size, dtype):
            continue
        told = subject.loaded.kv_layout(spec, block_size, dtype).block_bytes
        planned = block_bytes([spec], block_size, dtype)
        if not 0 < told <= planned:
            raise Failure(
                f"{what}: kv_layout tells {told} bytes a block of {block_size} tokens in {dtype}, the plan {planned}"
            )
