"""Paged attention, and layers with a recurrent state (`states.py`), on the native kernels of the `cpu` platform.

Owns: the layout of a block in memory and the checks before a call; the arithmetic is in the platform's extension
(`attention.inc.h`). Never does: decide where it is used (see the manifest), or read a key that a query must not see.
Called by: the attention layers, through the `attention` contract.

A block holds, for each kv head, K and then V, then per-token scales where the type has them. In float32 and float16: K
as [block_size / 16, D, 16], V as [block_size, D_v]; in the other types as pairs that one instruction multiplies: K as
[block_size / 16, D / 2, 16, 2], V as [block_size / 2, D_v, 2]. Where 16 does not divide the block size: K as
[block_size, D], V as [block_size, D_v], correct but slower to read. Values of 4-bit codes have a layout of their own
(`kv_codes.inc.h`). 8-bit numbers and the levels of codes are read as bfloat16, which holds them exactly. Arithmetic is
float32; where the processor multiplies bfloat16 and the cache does not hold float32 or float16, queries (of an index,
too) and softmax weights are rounded to bfloat16 first. A row's bits depend on its own keys alone: not on block size, chunks,
batch or threads. Blocks shared by several sequences are read once for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from core.api.errors import PluginError
from core.api.reason import Reason
from core.api.specs import KV_TYPES, AttentionQuery, AttentionSpec, KVLayout, LatentSpec, StateQuery, StateSpec
from core_attention.checks import check_cache, check_tables
from core_attention.cpu_paged.index import ChosenKeys, choose, write_index
from core_attention.cpu_paged.latent import LatentLayer, attend_latent, bind_latent, write_latent
from core_attention.cpu_paged.limits import ELEMENTS, VERSION, unsupported, unsupported_state
from core_attention.cpu_paged.metadata import Metadata
from core_attention.cpu_paged.moves import BlockLayout
from core_attention.cpu_paged.parts import attend_records, join_records, record_floats
from core_attention.cpu_paged.states import StateLayer
from core_platforms.cpu.checks import check_heads, check_rows, check_same
from core_platforms.cpu.extension import kernels_or_reason
from core_runtime.contracts import AttentionParams, BatchView

EVERY_KEY = 1 << 40
"""A limit above the length of any sequence."""


class Layer(NamedTuple):
    """An attention layer bound to its cache.

    spec: its heads and sizes.
    raw: its cache, which must stay alive.
    pointer: the cache's address.
    sizes, softmax: arguments of the native kernels, in their order.
    learned: sinks and slopes, which must stay alive too.
    """

    spec: AttentionSpec
    raw: Tensor
    pointer: int
    sizes: tuple[float, ...]
    softmax: tuple[float, ...]
    learned: tuple[Tensor | None, ...]


class CpuPagedAttention:
    """Implementation of the `attention` contract, including latent layers; bit-identical for any batch, chunking, block
    size and thread count.
    """

    name = "cpu_paged"
    heads_apart = True
    """Whether a block has its heads one after the other, and a state each earlier token's channels and then its heads, so that
    a rank's part of each is a slice."""
    capture = "any"
    moves_states = True
    span_keys = 128

    def __init__(self) -> None:
        native = kernels_or_reason()
        if isinstance(native, Reason):
            raise PluginError(f"attention backend cpu_paged is not available: {native}")
        self._native: ModuleType = native
        self._chosen = ChosenKeys(native)
        self.numerics = f"cpu-paged-{VERSION}:{native.isa()}"

    def kv_layout(self, spec: AttentionSpec | LatentSpec, block_size: int, dtype: str) -> KVLayout:
        """Return the bytes of one block of one layer."""
        return KVLayout(block_bytes=block_size * KV_TYPES[dtype].token_bytes(spec))

    def bind(
        self,
        spec: AttentionSpec | LatentSpec,
        block_size: int,
        dtype: str,
        raw: Tensor,
        params: AttentionParams | None = None,
    ) -> Layer | LatentLayer:
        """Bind a layer, once, to its cache `raw`, uint8 [num_blocks, block_bytes]. Raises PluginError when unsupported."""
        reasons = unsupported(AttentionQuery(spec, raw.device.type, dtype, block_size))
        if reasons:
            lacks = "; ".join(str(reason) for reason in reasons)
            raise PluginError(f"attention backend cpu_paged cannot serve this layer: {lacks}")
        block_bytes = self.kv_layout(spec, block_size, dtype).block_bytes
        check_cache(raw, block_bytes, strided=True)
        params = params or AttentionParams()
        if KV_TYPES[dtype].group:
            self.capture = "never"  # torch expands such latents
        if isinstance(spec, LatentSpec):
            return bind_latent(spec, block_size, dtype, raw, params)
        k_scale, v_scale = _static_scales(params, dtype)
        sizes = (
            spec.num_kv_heads,
            spec.head_size,
            spec.head_size_v,
            block_size,
            raw.stride(0),
            block_bytes // spec.num_kv_heads,
            ELEMENTS[dtype],
            int(KV_TYPES[dtype].scaled),
            k_scale,
            v_scale,
        )
        sinks = _per_head(params.sinks, spec, "sinks", spec.sinks)
        slopes = _per_head(params.slopes, spec, "slopes", spec.alibi)
        softmax = (
            spec.scale,
            spec.cap or 0.0,
            *_sight(spec),
            _address(sinks),
            _address(slopes),
        )
        return Layer(spec, raw, raw.data_ptr(), sizes, softmax, (sinks, slopes))

    def build(self, view: BatchView) -> Metadata:
        """Check the dtypes of the view's tensors and take their addresses; once per step."""
        check_tables(view)
        tables = (
            view.cu_seqlens_q.data_ptr(),
            view.seq_lens.data_ptr(),
            view.block_table.data_ptr(),
            view.block_table.stride(0),
            view.num_seqs,
        )
        return Metadata(view, tables, view.slot_mapping.data_ptr(), _tails(view), sees_to=_address(view.sees_to))

    def write(self, handle: Layer, k: Tensor, v: Tensor, metadata: Metadata) -> None:
        """Store k [T, Hkv, D] and v [T, Hkv, D_v] at the step's slots; a negative slot is skipped."""
        rows, heads, width, k_row, k_head = check_heads(k, "k")
        v_rows, v_heads, v_width, v_row, v_head = check_heads(v, "v")
        expected = (metadata.view.num_tokens, *handle.sizes[:3])
        fits = (rows, heads, width, v_width) == expected
        if not fits or (v_rows, v_heads) != (rows, heads):
            raise ValueError(f"k {tuple(k.shape)} and v {tuple(v.shape)} do not fit (T, Hkv, D, D_v) = {expected}")
        self._native.cache_write(
            k.data_ptr(),
            k_row,
            k_head,
            v.data_ptr(),
            v_row,
            v_head,
            handle.pointer,
            metadata.slots,
            rows,
            *handle.sizes,
        )

    def state_layout(self, spec: StateSpec, dtype: str) -> int:
        """Return the bytes of a state."""
        return spec.bytes_in(dtype)

    def bind_state(self, spec: StateSpec, dtype: str, raw: Tensor, params: Mapping[str, Tensor]) -> StateLayer:
        """Bind an op to the layer's bytes. Raises PluginError when unsupported."""
        reasons = unsupported_state(StateQuery(spec, raw.device.type, dtype))
        if reasons:
            lacks = "; ".join(str(reason) for reason in reasons)
            raise PluginError(f"attention backend cpu_paged cannot serve this layer: {lacks}")
        if not raw.is_contiguous():
            raise ValueError(f"the states are {tuple(raw.shape)}, expected contiguous bytes")
        return StateLayer(self._native, spec, dtype, raw, params)

    def build_state(self, view: BatchView) -> Metadata:
        """Describe, once per step, the sequence of each row and the blocks of its state."""
        sources = view.block_table if view.state_sources is None else view.state_sources
        if sources.dtype is not torch.int32 or sources.stride() != view.block_table.stride():
            raise ValueError(
                f"state_sources are {sources.dtype} {sources.stride()}, expected a part of the block table"
            )
        return self.build(view)._replace(sources=sources.data_ptr())

    def forward_state(self, handle: StateLayer, inputs: Tensor, metadata: Metadata, out: Tensor) -> None:
        """Compute out [T, W'] of inputs [T, W] for all sequences at once, and advance their states."""
        spec = handle.spec
        rows, stride = check_rows(inputs, spec.input_size, "inputs")
        out_rows, out_stride = check_rows(out, spec.output_size, "out")
        check_same(metadata.view.num_tokens, rows, "inputs")
        check_same(rows, out_rows, "out")
        places = (inputs.data_ptr(), stride, out.data_ptr(), out_stride)
        self._native.state(
            handle.handle, *places, handle.pointer, handle.block_bytes, *metadata.tables, metadata.sources
        )

    def forward(self, handle: Layer, q: Tensor, metadata: Metadata, out: Tensor) -> None:
        """Compute out [T, Hq, D_v] = attention of q [T, Hq, D] over the cache."""
        rows, heads, width, q_row, q_head = check_heads(q, "q")
        out_rows, out_heads, out_width, out_row, out_head = check_heads(out, "out")
        spec = handle.spec
        expected = (metadata.view.num_tokens, spec.num_heads)
        heads_fit = (rows, heads) == expected and (out_rows, out_heads) == expected
        widths_fit = (width, out_width) == (spec.head_size, spec.head_size_v)
        if not (heads_fit and widths_fit):
            raise ValueError(
                f"q {tuple(q.shape)} and out {tuple(out.shape)} do not fit (T, Hq) = {expected} and {spec}"
            )
        pointers = (q.data_ptr(), q_row, q_head, out.data_ptr(), out_row, out_head)
        layer = (handle.pointer, heads, *handle.sizes, *handle.softmax)
        self._native.attention(*pointers, *metadata.tables, *layer, *metadata.tails, metadata.sees_to)

    def move(self, handle: Layer | LatentLayer, sources: Tensor, targets: Tensor) -> None:
        """Copy slots, int64 [n], to other slots."""
        if isinstance(handle, LatentLayer) and handle.packed is not None:
            handle.packed.move(sources, targets)
            return
        sizes = handle.sizes
        block_size, element = (sizes[2], sizes[4]) if isinstance(handle, LatentLayer) else (sizes[3], sizes[6])
        layout = BlockLayout.of(handle.spec, int(block_size), int(element))
        layout.move(handle.raw, sources, targets)

    def write_latent(self, handle: LatentLayer, c: Tensor, k_pe: Tensor, metadata: Metadata) -> None:
        """Store c [T, R] and k_pe [T, Dr] at the step's slots; a negative slot is skipped."""
        write_latent(self._native, handle, c, k_pe, metadata)

    def forward_latent(
        self, handle: LatentLayer, q_latent: Tensor, q_pe: Tensor, metadata: Metadata, out: Tensor
    ) -> None:
        """Compute out [T, H, R] = causal attention of q_latent [T, H, R] and q_pe [T, H, Dr] over the cache."""
        attend_latent(self._native, handle, q_latent, q_pe, metadata, out)

    def write_index(self, handle: LatentLayer, k: Tensor, metadata: Metadata) -> None:
        """Store the keys of the layer's index, k [T, Di], at the step's slots."""
        write_index(self._native, handle, k, metadata)

    def choose(self, handle: LatentLayer, q: Tensor, weights: Tensor, metadata: Metadata, out: Tensor) -> None:
        """Write the chosen positions of each row to out, int32 [T, top_k]; see `ChoosesKeys`."""
        choose(self._native, handle, q, weights, metadata, out)

    def forward_chosen(
        self, handle: LatentLayer, q_latent: Tensor, q_pe: Tensor, chosen: Tensor, metadata: Metadata, out: Tensor
    ) -> None:
        """Compute `forward_latent` over the chosen keys alone."""
        self._chosen.attend(handle, q_latent, q_pe, chosen, metadata, out)

    @property
    def gathered_nbytes(self) -> int:
        """Bytes of the room for chosen keys, which grows to that of the largest step."""
        return self._chosen.nbytes

    def record_floats(self, handle: Layer | LatentLayer) -> int:
        """Return the numbers of a query's record over a span, 0 for windows and slopes, which depend on absolute positions."""
        if isinstance(handle, LatentLayer):
            return record_floats(handle.spec.rank)
        _, _, window, ahead, _, slopes = handle.softmax
        return 0 if window or ahead or slopes else record_floats(handle.spec.head_size_v)

    def attend_records(
        self, handle: Layer | LatentLayer, queries: Sequence[Tensor], metadata: Metadata, bases: Tensor, out: Tensor
    ) -> None:
        """Write the records of queries over this rank's keys; see `SumsParts`."""
        softmax = (handle.spec.scale, 0.0) if isinstance(handle, LatentLayer) else handle.softmax[:2]
        attend_records(self._native, handle, queries, softmax, metadata, bases, out)

    def join_records(
        self, handle: Layer | LatentLayer, records: Tensor, metadata: Metadata, bases: Tensor, piece: int, out: Tensor
    ) -> None:
        """Merge records in the order of spans; see `SumsParts`."""
        sinks = 0 if isinstance(handle, LatentLayer) else int(handle.softmax[4])
        join_records(self._native, handle, records, metadata, bases, piece, sinks, out)


def _tails(view: BatchView) -> tuple[int, int]:
    """Return the address and depth of the tails; zeros without tails."""
    tails = view.tails
    if tails is None:
        return 0, 0
    depth = tails.shape[1]
    if tails.dtype is not torch.int32 or tails.shape[0] < view.num_seqs or not tails.is_contiguous():
        raise ValueError(
            f"tails are {tails.dtype} {tuple(tails.shape)}, expected contiguous int32 ({view.num_seqs}, depth)"
        )
    return tails.data_ptr(), depth


def _sight(spec: AttentionSpec) -> tuple[int, int]:
    """Return the number of keys that a query sees up to itself (0: all; negative: its own chunk) and after itself."""
    window = spec.window or 0
    if spec.causal:
        return -window if spec.chunked else window, 0
    if not window:
        return 0, EVERY_KEY
    reach = window // 2
    return reach + 1, reach


def _address(tensor: Tensor | None) -> int:
    """Return the address of the first element; 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()


def _static_scales(params: AttentionParams, dtype: str) -> tuple[float, float]:
    """Return the layer-wide scales of K and V: 1 except for 8-bit types without per-token scales."""
    kv_type = KV_TYPES[dtype]
    if kv_type.item_bytes > 1 or kv_type.scaled:
        return 1.0, 1.0
    if not (params.k_scale > 0 and params.v_scale > 0):
        raise ValueError(f"k_scale {params.k_scale} and v_scale {params.v_scale}: expected positive numbers")
    return params.k_scale, params.v_scale


def _per_head(values: Tensor | None, spec: AttentionSpec, name: str, wanted: bool) -> Tensor | None:
    """Return float32 [Hq], or None where the spec has none. Raises ValueError."""
    if (values is not None) != wanted:
        problem = "are missing" if wanted else "were given"
        raise ValueError(f"{name} {problem}: the layer's spec says otherwise")
    if values is None:
        return None
    if values.shape != (spec.num_heads,):
        raise ValueError(
            f"{name} have the shape {tuple(values.shape)}, expected one for each of {spec.num_heads} heads"
        )
    return values.detach().to(torch.float32).contiguous()
