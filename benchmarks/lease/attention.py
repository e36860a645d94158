"""Attention of one layer of a model of 8 B, over a cache of random numbers, beside torch and FlashInfer.

Owns: the steps that are measured. Called by: stage 2.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.lease.place import Place
from benchmarks.lease.rows import Row

HEADS, KV_HEADS, SIZE = 32, 8, 128
BLOCK = 16
STEPS: dict[str, tuple[list[int], list[int]]] = {
    "decode 1 x 1k": ([1], [1024]),
    "decode 1 x 32k": ([1], [32768]),
    "decode 64 x 1k": ([1] * 64, [1024] * 64),
    "decode 64 x 8k": ([1] * 64, [8192] * 64),
    "decode 256 x 1k": ([1] * 256, [1024] * 256),
    "decode 63 x 1k and 1 x 128k": ([1] * 64, [1024] * 63 + [131072]),
    "prompt of 8k": ([8192], [8192]),
    "prompts 8 x 1k": ([1024] * 8, [1024] * 8),
}
"""New tokens and all tokens of each sequence."""
TINY: dict[str, tuple[list[int], list[int]]] = {"decode": ([1, 1], [20, 40]), "prompt": ([24], [24])}
BACKENDS = {"triton": ("triton",), "flash_attn": ("flash_attn_interface", "flash_attn"), "flashinfer": ("flashinfer",)}
"""Backends, each with libraries of which it needs one."""


def attention(place: Place) -> Iterator[Row]:
    """Every step with every backend that is there."""
    for name, libraries in BACKENDS.items():
        if not any(find_spec(library) for library in libraries):
            yield Row("", f"{name} is not installed", is_fine=True)
            continue
        for step, (query_lens, seq_lens) in place.pick(STEPS, TINY).items():
            seconds = place.seconds_of(case_of(place, name, query_lens, seq_lens))
            yield row_of(place, f"{name}: {step}", query_lens, seq_lens, seconds)
    for step, (query_lens, seq_lens) in place.pick(STEPS, TINY).items():
        if len(set(seq_lens)) == 1:
            seconds = place.seconds_of(dense_of(place, query_lens, seq_lens))
            yield row_of(place, f"torch's SDPA, keys in one piece: {step}", query_lens, seq_lens, seconds)


def row_of(place: Place, what: str, query_lens: list[int], seq_lens: list[int], seconds: float) -> Row:
    """Return the row of a step: of decoding beside the copy rate, of prompts beside the rate of products."""
    if max(query_lens) == 1:
        nbytes = 2 * 2 * KV_HEADS * SIZE * sum(seq_lens)
        return Row("", what, seconds * 1e6, "us", nbytes / seconds / place.copy_rate, "copy rate")
    operations = sum(
        4 * HEADS * SIZE * new * (length - new / 2) for new, length in zip(query_lens, seq_lens, strict=True)
    )
    return Row("", what, seconds * 1e6, "us", operations / seconds / place.matmul_rate, "matmul rate")


@functools.cache
def _backend(name: str, device: str) -> Any:
    from core.plugin.hookspecs import LoadContext
    from core.plugin.registry import PluginRegistry
    from core.plugin.table import load_plugin

    context = LoadContext(device="cuda:0" if device == "cuda" else device, dtype="bfloat16")
    return load_plugin(PluginRegistry().get("attention", name), context)


def case_of(place: Place, name: str, query_lens: list[int], seq_lens: list[int]) -> Callable[[], object]:
    """Return the call of a backend for a step."""
    from core.api.specs import AttentionSpec
    from core_kit.oracles.reference import batch_view

    backend = _backend(name, place.device.type)
    spec = AttentionSpec(HEADS, KV_HEADS, SIZE, SIZE, SIZE**-0.5)
    tables: list[list[int]] = []
    first = 1
    for length in seq_lens:
        count = -(-length // BLOCK)
        tables.append(list(range(first, first + count)))
        first += count
    nbytes = backend.kv_layout(spec, BLOCK, "bfloat16").block_bytes
    raw = place.random(first, nbytes // 2).view(torch.uint8)
    handle = backend.bind(spec, BLOCK, "bfloat16", raw)
    view = batch_view(query_lens, seq_lens, tables, BLOCK)
    for part in ("cu_seqlens_q", "seq_lens", "block_table", "slot_mapping", "positions"):
        setattr(view, part, getattr(view, part).to(place.device))
    step = backend.build(view)
    q = place.random(sum(query_lens), HEADS, SIZE)
    out = torch.empty_like(q)
    return lambda: backend.forward(handle, q, step, out)


def dense_of(place: Place, query_lens: list[int], seq_lens: list[int]) -> Callable[[], object]:
    """Return torch's call for sequences of one length, whose keys lie in one piece."""
    count, new, length = len(seq_lens), query_lens[0], seq_lens[0]
    q = place.random(count, HEADS, new, SIZE)
    k, v = place.random(count, KV_HEADS, length, SIZE), place.random(count, KV_HEADS, length, SIZE)
    return lambda: scaled_dot_product_attention(q, k, v, is_causal=new > 1, enable_gqa=True)
