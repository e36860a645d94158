"""Paged and latent attention, and layers with a recurrent state (`states/`), on Triton kernels.

Owns: the contract, and the checks before a launch. Never does: decide where it is used (see the manifest), or depend on
a step's host-side lists.
Called by: the attention layers, through the `attention` contract.

A row's bits depend on its own queries and keys alone, see `spans.py`; tiles, and therefore bits, may differ between
chips.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from core.api.errors import PluginError
from core.api.reason import Reason
from core.api.specs import KV_TYPES, AttentionQuery, AttentionSpec, KVLayout, LatentSpec, StateQuery, StateSpec
from core_attention.checks import check_cache, check_tables
from core_attention.triton.launch import attend_rows, turn_and_write_rows, write_rows
from core_attention.triton.layer import Layer
from core_attention.triton.limits import Cached, numerics_name, unsupported, unsupported_state
from core_attention.triton.moves import move_slots
from core_attention.triton.plan import Step
from core_attention.triton.states.layer import StateLayer, bind_states
from core_kernels.triton.compiling.bound import bind_kernels
from core_kernels.triton.compiling.launch import chip_of
from core_runtime.contracts import AttentionParams, BatchView, HeadTurn

PROGRAMS_PER_PROCESSOR = 4
USUAL_PROCESSORS = 128
FLOAT_BYTES = 4
INTERPRETED_PROGRAMS = 8


class TritonAttention:
    """Implementation of the `attention` contract, including latent layers and `TurnsHeads`.

    wanted_programs: programs that occupy the device; None: derived from its multiprocessors.
    chunked_states: whether prompts advance states in chunks, where an op has that form.
    """

    name = "triton"
    capture = "any"
    turns_as = "triton"

    def __init__(self, wanted_programs: int | None = None, *, chunked_states: bool = False) -> None:
        self._wanted = wanted_programs
        bind_kernels("core_attention")
        self._chunked_states = chunked_states
        self.numerics = numerics_name(chunked_states)

    def kv_layout(self, spec: Cached, block_size: int, dtype: str) -> KVLayout:
        """Return the bytes of one block of one layer."""
        return KVLayout(block_bytes=block_size * KV_TYPES[dtype].token_bytes(spec))

    def bind(
        self, spec: Cached, block_size: int, dtype: str, raw: Tensor, params: AttentionParams | None = None
    ) -> Layer:
        """Bind a layer, once, to its cache `raw`, uint8 [num_blocks, block_bytes]. Raises PluginError when unsupported."""
        _raise_for(unsupported(AttentionQuery(spec, raw.device.type, dtype, block_size)))
        block_bytes = self.kv_layout(spec, block_size, dtype).block_bytes
        check_cache(raw, block_bytes)
        if self._wanted is None:
            self._wanted = _programs(raw.device)
        own = _own_params(spec, dtype, params or AttentionParams())
        return Layer(spec, block_size, dtype, chip_of(raw.device), raw, own)

    def build(self, view: BatchView) -> Step:
        """Check the view's tensors, once per step; kernels read them as they are."""
        _check_view(view)
        return Step(view, self._wanted or 1)

    def write(self, handle: Layer, k: Tensor, v: Tensor, metadata: Step) -> None:
        """Store k [T, Hkv, D] and v [T, Hkv, D_v] at the step's slots; a negative slot is skipped."""
        layout = handle.layout
        _check(k, "k", metadata.view.num_tokens, layout.heads, layout.size)
        _check(v, "v", metadata.view.num_tokens, layout.heads, layout.value_size)
        write_rows(handle, k, v, metadata.view)

    def turn_and_write(
        self, handle: Layer, q: Tensor, k: Tensor, v: Tensor, turn: HeadTurn, positions: Tensor, metadata: Step
    ) -> None:
        """Normalize and rotate q [T, Hq, D] in place, and store k [T, Hkv, D] and v [T, Hkv, D_v] at the step's slots:
        the `TurnsHeads` contract.
        """
        layout = handle.layout
        spec = handle.spec
        assert isinstance(spec, AttentionSpec)
        _check(q, "q", metadata.view.num_tokens, spec.num_heads, spec.head_size)
        _check(k, "k", metadata.view.num_tokens, layout.heads, layout.size)
        _check(v, "v", metadata.view.num_tokens, layout.heads, layout.value_size)
        turn_and_write_rows(handle, q, k, v, turn, positions, metadata.view)

    def forward(self, handle: Layer, q: Tensor, metadata: Step, out: Tensor) -> None:
        """Compute out [T, Hq, D_v] = causal attention of q [T, Hq, D] over the cache."""
        spec = handle.spec
        assert isinstance(spec, AttentionSpec)
        _check(q, "q", metadata.view.num_tokens, spec.num_heads, spec.head_size)
        _check(out, "out", metadata.view.num_tokens, spec.num_heads, spec.head_size_v)
        attend_rows(handle, q, q, metadata, out)

    def write_latent(self, handle: Layer, c: Tensor, k_pe: Tensor, metadata: Step) -> None:
        """Store c [T, R] and k_pe [T, Dr] at the step's slots; a negative slot is skipped."""
        self.write(handle, c.unsqueeze(1), k_pe.unsqueeze(1), metadata)

    def forward_latent(self, handle: Layer, q_latent: Tensor, q_pe: Tensor, metadata: Step, out: Tensor) -> None:
        """Compute out [T, H, R] = causal attention of q_latent [T, H, R] and q_pe [T, H, Dr] over the cache."""
        spec = handle.spec
        assert isinstance(spec, LatentSpec)
        _check(q_latent, "q_latent", metadata.view.num_tokens, spec.num_heads, spec.rank)
        _check(q_pe, "q_pe", metadata.view.num_tokens, spec.num_heads, spec.rope_size)
        _check(out, "out", metadata.view.num_tokens, spec.num_heads, spec.rank)
        attend_rows(handle, q_latent, q_pe, metadata, out)

    def state_layout(self, spec: StateSpec, dtype: str) -> int:
        """Return the size of the state in float32 numbers."""
        return spec.state_bytes

    def bind_state(self, spec: StateSpec, dtype: str, raw: Tensor, params: Mapping[str, Tensor]) -> StateLayer:
        """Bind an op to the layer's bytes. Raises PluginError when unsupported."""
        _raise_for(unsupported_state(StateQuery(spec, raw.device.type, dtype)))
        if not raw.is_contiguous() or raw.shape[1] % FLOAT_BYTES:
            raise ValueError(f"the states are {tuple(raw.shape)}, expected contiguous bytes, blocks of whole numbers")
        return bind_states(spec, raw, params, self._chunked_states)

    def build_state(self, view: BatchView) -> BatchView:
        """Check the view's tensors, once per step."""
        _check_view(view)
        return view

    def forward_state(self, handle: StateLayer, inputs: Tensor, metadata: BatchView, out: Tensor) -> None:
        """Compute out [T, W'] of inputs [T, W] for all sequences at once, and advance their states."""
        handle.forward(inputs, metadata, out)

    def move(self, handle: Layer, sources: Tensor, targets: Tensor) -> None:
        """Copy slots, int64 [n], to other slots."""
        move_slots(handle.raw, handle.spec, handle.block_size, handle.dtype, sources, targets)


def _check_view(view: BatchView) -> None:
    """Raise ValueError for tensors that kernels cannot read."""
    check_tables(view)
    tails = view.tails
    if tails is not None and (tails.dtype is not torch.int32 or not tails.is_contiguous()):
        raise ValueError(f"tails are {tails.dtype} {tuple(tails.shape)}, expected contiguous int32")


def _raise_for(reasons: list[Reason]) -> None:
    if reasons:
        lacks = "; ".join(str(reason) for reason in reasons)
        raise PluginError(f"attention backend triton cannot serve this layer: {lacks}")


def _programs(device: torch.device) -> int:
    """Return the number of programs that occupy a device."""
    if device.type == "cpu":
        return INTERPRETED_PROGRAMS
    if device.type == "meta":  # compiling ahead for a device that is not present
        return PROGRAMS_PER_PROCESSOR * USUAL_PROCESSORS
    properties = torch.cuda.get_device_properties(device)
    return PROGRAMS_PER_PROCESSOR * int(properties.multi_processor_count)


def _own_params(spec: Cached, dtype: str, params: AttentionParams) -> AttentionParams:
    """Return the layer's scales (1 where the KV type has none), and sinks and slopes where the spec has them."""
    kv_type = KV_TYPES[dtype]
    has_scales = kv_type.item_bytes == 1 and not kv_type.scaled
    k_scale = params.k_scale if has_scales else 1.0
    v_scale = params.v_scale if has_scales else 1.0
    if not (k_scale > 0 and v_scale > 0):
        raise ValueError(f"k_scale {k_scale} and v_scale {v_scale}: expected positive numbers")
    if isinstance(spec, LatentSpec):
        return AttentionParams(k_scale, k_scale)
    sinks = _per_head(params.sinks, spec.num_heads, "sinks", spec.sinks)
    slopes = _per_head(params.slopes, spec.num_heads, "slopes", spec.alibi)
    return replace(params, k_scale=k_scale, v_scale=v_scale, sinks=sinks, slopes=slopes)


def _per_head(values: Tensor | None, heads: int, name: str, wanted: bool) -> Tensor | None:
    """Return float32 [Hq], or None where the spec has none. Raises ValueError."""
    if (values is not None) != wanted:
        problem = "are missing" if wanted else "were given"
        raise ValueError(f"{name} {problem}: the layer's spec says otherwise")
    if values is None:
        return None
    if values.shape != (heads,):
        raise ValueError(f"{name} have the shape {tuple(values.shape)}, expected one for each of {heads} heads")
    return values.detach().to(torch.float32).contiguous()


def _check(tensor: Tensor, what: str, rows: int, heads: int, width: int) -> None:
    """Raise ValueError unless `tensor` is [T, H, D] with contiguous heads."""
    expected = (rows, heads, width)
    if tuple(tensor.shape) != expected or tensor.stride(2) != 1:
        raise ValueError(
            f"{what} is {tuple(tensor.shape)} with strides {tensor.stride()}, expected {expected}, contiguous heads"
        )
