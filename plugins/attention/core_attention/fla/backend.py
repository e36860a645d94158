"""Layers of the gated delta rule: prompts through flash-linear-attention, few tokens through the engine's own kernels.

Owns: which steps the library computes, and what it is given. Never does: convolve, norm or gate (the own kernels do).
Called by: the decoder, through the contract of layers with a state.

The library computes chunks of 64 tokens as matrix products, where the own kernel takes one token after the other. Its
bits are its own: they depend on where a prompt is cut, and on which of both computes a token.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import torch
from torch import Tensor

from core.api.errors import PluginError
from core.api.specs import StateQuery, StateSpec
from core_attention.fla.delta import ChunkedDelta, Prompts
from core_attention.fla.limits import lacking_state
from core_attention.triton.backend import TritonAttention
from core_attention.triton.states.layer import Delta
from core_runtime.contracts import BatchView

LEAST: Final = 64
"""Steps whose sequences have at most this many new tokens are the own kernel's: they can be recorded."""


@dataclass(frozen=True, slots=True)
class FlaStep:
    """The metadata of one step. own: that of the own kernels. prompts: None where they compute it."""

    view: BatchView
    own: Any
    prompts: Prompts | None


class FlaStates:
    """Implementation of the contract of layers with a state.

    numerics: the library's version, and that of the own kernels.
    least: most new tokens of a sequence that the own kernel computes.
    """

    name = "fla"
    capture = "uniform"

    def __init__(self, numerics: str, least: int = LEAST) -> None:
        self.numerics = numerics
        self.least = least
        self._rule: Any = importlib.import_module("fla.ops.gated_delta_rule").chunk_gated_delta_rule
        self._own = TritonAttention()

    def state_layout(self, spec: StateSpec, dtype: str) -> int:
        """Return the size of the state in bytes."""
        return self._own.state_layout(spec, dtype)

    def bind_state(self, spec: StateSpec, dtype: str, raw: Tensor, params: Mapping[str, Tensor]) -> ChunkedDelta:
        """Bind a layer to its bytes. Raises PluginError when unsupported."""
        reasons = lacking_state(StateQuery(spec, raw.device.type, dtype))
        if reasons:
            raise PluginError(f"attention backend fla cannot serve this layer: {'; '.join(map(str, reasons))}")
        own = self._own.bind_state(spec, dtype, raw, params)
        assert isinstance(own, Delta), "the op is gated_delta"
        return ChunkedDelta(spec, raw, own, self._rule)

    def build_state(self, view: BatchView) -> FlaStep:
        """Decide who computes the step, once for all layers."""
        own = self._own.build_state(view)
        if view.max_query_len <= self.least or not view.query_lens:
            return FlaStep(view, own, None)
        count = sum(length > 0 for length in view.query_lens)
        ends = torch.tensor([0, *accumulate(view.query_lens[:count])])
        return FlaStep(view, own, Prompts(count, int(ends[-1]), ends, ends.to(view.positions.device)))

    def forward_state(self, handle: ChunkedDelta, inputs: Tensor, metadata: FlaStep, out: Tensor) -> None:
        """Compute out [T, W'] of inputs [T, W] for all sequences at once, and advance their states."""
        if metadata.prompts is None:
            self._own.forward_state(handle.own, inputs, metadata.own, out)
        else:
            handle.forward_chunks(inputs, metadata.view, metadata.prompts, out)
