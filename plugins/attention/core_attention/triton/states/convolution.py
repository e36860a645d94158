"""The convolution of a layer with a state, and its launches.

Owns: the taps. Never does: know the op that follows. Called by: the ops.
"""

from __future__ import annotations

import triton
from torch import Tensor

from core_attention.triton.states.common import CHANNEL_TILE, FLAGS, States
from core_attention.triton.states.convolve_kernel import convolve, slide
from core_runtime.contracts import BatchView


class Convolution:
    """The causal depthwise convolution of a layer.

    weight: [C, 1, kernel]. gated: input and output are gated as in `short_conv`. scale: [C] for its taps, or None.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None, states: States, *, gated: bool = False, scale: Tensor | None = None
    ) -> None:
        taps = weight[:, 0].float().t()
        if scale is not None:
            taps = taps * scale.to(taps.device)
        self.taps = taps.contiguous()
        self.bias = None if bias is None else bias.float().contiguous()
        self.states = states
        self.gated = gated
        self.kernel, self.channels = self.taps.shape

    def __call__(self, x: Tensor, view: BatchView, out: Tensor) -> None:
        """Compute out [T, C] of x [T, ...] and advance the windows."""
        places = (view.cu_seqlens_q, view.seq_lens, view.block_table)
        strides = (view.block_table.stride(0), x.stride(0))
        tiles = triton.cdiv(self.channels, CHANNEL_TILE)
        constants = {
            "CHANNELS": self.channels,
            "TILE": CHANNEL_TILE,
            "PAST": self.kernel - 1,
            "WORDS": self.states.words,
            "GATED": self.gated,
            **FLAGS,
        }
        bias = self.taps if self.bias is None else self.bias
        convolve[(view.num_tokens, tiles)](
            x,
            out,
            self.states.cache,
            self.taps,
            bias,
            *places,
            view.num_seqs,
            *strides,
            out.stride(0),
            HAS_BIAS=self.bias is not None,
            **constants,
        )
        slide[(view.num_seqs, tiles)](x, self.states.cache, *places, *strides, **constants)
