"""Layers, block sizes and dtypes for testing attention backends, and the comparison with the reference formula.

Owns: the combinations, and the selection of those that a backend serves. Never does: know a layout; the reference is
`core_kit.reference`. Called by: the checks of attention backends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from core.api.reason import Reason
from core.api.specs import AttentionQuery, AttentionSpec, LatentSpec
from core_config.selection.reasons import attention_reasons
from core_kit.case import Subject
from core_kit.numbers import close, generator
from core_kit.reference import Conversation, PagedRun, as_attention, dense_attention

Cached = AttentionSpec | LatentSpec
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
"""Kinds of layers used for testing; a new member of AttentionSpec is one more row."""
LATENTS = {
    "latents": LatentSpec(num_heads=4, rank=32, rope_size=16, head_size_nope=24, head_size_v=24, scale=0.16),
    "latents of one head": LatentSpec(1, rank=64, rope_size=64, head_size_nope=64, head_size_v=64, scale=0.09),
    "latents of DeepSeek-V3": LatentSpec(16, rank=512, rope_size=64, head_size_nope=128, head_size_v=128, scale=0.07),
}
"""Kinds of latent layers used for testing."""


def reasons_of(subject: Subject, spec: Cached, block_size: int, dtype: str) -> list[Reason]:
    """Return reasons as selection does: from capabilities first, then from the plugin."""
    query = AttentionQuery(spec, subject.device, dtype, block_size)
    declared = attention_reasons(subject.manifest.spec, query)
    return declared or list(subject.manifest.call("core_supports", query=query))


def combinations(subject: Subject) -> Iterator[tuple[str, Cached, int, str]]:
    """Yield each layer variant once, and each head size, block size and dtype once with grouped heads and with latents."""
    head, block, dtype = usual(subject)
    sizes, blocks, dtypes = choices(subject)
    for what in VARIANTS:
        yield what, variant(what, head), block, dtype
    for size in sizes:
        yield f"head size {size}", grouped(size), block, dtype
    for what, latent in LATENTS.items():
        yield what, latent, block, dtype
    plainest: dict[str, Cached] = {"": grouped(head), " of latents": LATENTS["latents"]}
    for what, spec in plainest.items():
        for size in blocks:
            yield f"blocks of {size}{what}", spec, size, dtype
        for other in dtypes:
            yield f"a cache of {other}{what}", spec, block, other


def choices(subject: Subject) -> tuple[Sequence[int], Sequence[int], Sequence[str]]:
    """Return head sizes, block sizes and KV dtypes: the declared ones, or some of each."""
    declared = subject.manifest.spec.capabilities
    sizes = declared.get("head_sizes") or HEAD_SIZES
    blocks = declared.get("block_sizes") or BLOCK_SIZES
    dtypes = declared.get("kv_dtypes") or DTYPES
    return sizes, blocks, dtypes


def usual(subject: Subject) -> tuple[int, int, str]:
    """Return the plainest head size, block size and KV dtype of its choices."""
    sizes, blocks, dtypes = choices(subject)
    block = 16 if 16 in blocks else blocks[0]
    dtype = "float32" if "float32" in dtypes else dtypes[0]
    return sizes[0], block, dtype


def ordinary(subject: Subject, *variants: str) -> Iterator[tuple[str, Cached, int, str]]:
    """Yield the named variants (by default grouped heads) that it serves, and the first latent layer that it serves."""
    head, block, dtype = usual(subject)
    for what in variants or ("grouped heads",):
        spec = variant(what, head)
        if not reasons_of(subject, spec, block, dtype):
            yield what, spec, block, dtype
    for what, latent in LATENTS.items():
        if not reasons_of(subject, latent, block, dtype):
            yield what, latent, block, dtype
            return


def variant(name: str, head_size: int) -> AttentionSpec:
    """Return a layer of VARIANTS with the given head size."""
    return AttentionSpec(head_size=head_size, head_size_v=head_size, scale=head_size**-0.5, **VARIANTS[name])


def grouped(head_size: int) -> AttentionSpec:
    """Return the layer with grouped heads."""
    return variant("grouped heads", head_size)


def tolerance(dtype: str) -> float:
    """Return the largest error allowed with a KV dtype."""
    return TOLERANCES.get(dtype, 5e-2)


def compare(subject: Subject, what: str, spec: Cached, block_size: int, dtype: str, chunk: int) -> None:
    """Raise Failure where prompts, in chunks of `chunk` tokens (0: whole), differ from the reference formula."""
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
        close(outs[number], expected, tolerance(dtype), label, axis=-1)
