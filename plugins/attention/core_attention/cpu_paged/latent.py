"""Latent layers on the native attention kernel.

Owns: the handle of a latent layer, and the checks before a call. Never does: multiply with a projection (the core
does).
Called by: `backend.py`.

A token's latent and rotated key form one key of R + Dr numbers, stored as `backend.py` describes for K; the values are
the latents within it. A span of keys is read once for all heads.
"""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

from torch import Tensor

from core.api.specs import KV_TYPES, LatentSpec
from core_attention.cpu_paged.limits import ELEMENTS
from core_attention.cpu_paged.metadata import Metadata
from core_attention.cpu_paged.packed_latents import PackedCache
from core_platforms.cpu.checks import check_heads, check_rows
from core_runtime.contracts import AttentionParams


class LatentLayer(NamedTuple):
    """A latent layer bound to its cache.

    spec: its heads and sizes.
    raw: its cache, which must stay alive.
    pointer: the cache's address.
    sizes: arguments of the native kernels, in their order.
    packed: its tokens, where a group of numbers has a scale; None: the kernels read the cache as it is.
    """

    spec: LatentSpec
    raw: Tensor
    pointer: int
    sizes: tuple[float, ...]
    packed: PackedCache | None = None

    def reading(self, cache: Tensor, block_size: int) -> LatentLayer:
        """Return the same layer on expanded keys. cache: bfloat16 [blocks, block_size * (R + Dr)]."""
        sizes = (*self.sizes[:2], block_size, 2 * cache.shape[1], ELEMENTS["bfloat16"], 1.0)
        return LatentLayer(self.spec, cache, cache.data_ptr(), sizes)


def bind_latent(spec: LatentSpec, block_size: int, dtype: str, raw: Tensor, params: AttentionParams) -> LatentLayer:
    """Bind a layer to its cache, uint8 [blocks, block_bytes]. Raises ValueError for a scale that is not positive."""
    if KV_TYPES[dtype].group:
        sizes = (spec.rank + spec.rope_size, spec.rank, block_size, raw.stride(0), ELEMENTS[dtype], 1.0)
        return LatentLayer(spec, raw, raw.data_ptr(), sizes, PackedCache(spec, block_size, raw))
    scale = params.k_scale if KV_TYPES[dtype].item_bytes == 1 else 1.0
    if not scale > 0:
        raise ValueError(f"k_scale {scale}: expected a positive number")
    sizes = (spec.rank + spec.rope_size, spec.rank, block_size, raw.stride(0), ELEMENTS[dtype], scale)
    return LatentLayer(spec, raw, raw.data_ptr(), sizes)


def write_latent(native: ModuleType, handle: LatentLayer, c: Tensor, k_pe: Tensor, metadata: Metadata) -> None:
    """Store c [T, R] and k_pe [T, Dr] at the step's slots; a negative slot is skipped."""
    spec = handle.spec
    rows, c_row = check_rows(c, spec.rank, "c")
    k_rows, k_row = check_rows(k_pe, spec.rope_size, "k_pe")
    if (rows, k_rows) != (metadata.view.num_tokens,) * 2:
        raise ValueError(f"c has {rows} and k_pe {k_rows} rows, expected {metadata.view.num_tokens}")
    if handle.packed is not None:
        handle.packed.write(c, k_pe, metadata.view.slot_mapping)
        return
    native.latent_write(
        c.data_ptr(), c_row, k_pe.data_ptr(), k_row, handle.pointer, metadata.slots, rows, *handle.sizes
    )


def attend_latent(
    native: ModuleType, handle: LatentLayer, q_latent: Tensor, q_pe: Tensor, metadata: Metadata, out: Tensor
) -> None:
    """Compute out [T, H, R] = causal attention of q_latent [T, H, R] and q_pe [T, H, Dr] over the cache."""
    spec = handle.spec
    *latent_shape, q_row, q_head = check_heads(q_latent, "q_latent")
    *rotated_shape, pe_row, pe_head = check_heads(q_pe, "q_pe")
    *out_shape, out_row, out_head = check_heads(out, "out")
    expected = [metadata.view.num_tokens, spec.num_heads, spec.rank]
    rotated = [metadata.view.num_tokens, spec.num_heads, spec.rope_size]
    if latent_shape != expected or out_shape != expected or rotated_shape != rotated:
        shapes = f"q_latent {latent_shape}, q_pe {rotated_shape} and out {out_shape}"
        raise ValueError(f"{shapes} do not fit (T, H, R) = {expected} and (T, H, Dr) = {rotated}")
    if handle.packed is not None:
        for rows, part, cache in handle.packed.parts(metadata):
            here = handle.reading(cache, handle.packed.block_size)
            attend_latent(native, here, q_latent[rows], q_pe[rows], part, out[rows])
        return
    queries = (q_latent.data_ptr(), q_row, q_head, q_pe.data_ptr(), pe_row, pe_head)
    outputs = (out.data_ptr(), out_row, out_head)
    layer = (handle.pointer, spec.num_heads, *handle.sizes, spec.scale)
    native.latent_attention(*queries, *outputs, *metadata.tables, *layer, *metadata.tails)
