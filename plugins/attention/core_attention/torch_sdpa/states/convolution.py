"""The causal depthwise convolution before a recurrence.

Owns: its taps, and the computation of the next input window. Never does: store the window. Called by: the ops.
"""

from __future__ import annotations

import torch
from torch import Tensor

from core_attention.torch_sdpa.states.step import StateMetadata
from core_attention.torch_sdpa.states.stored import as_stored


class Convolution:
    """The convolution of one layer, computed tap by tap over all rows, so that a row's bits depend on its own inputs
    alone.

    weight: [C, 1, kernel], the newest token's tap last.
    bias: [C] or None.
    dtype: storage type of the window; a token's input is rounded to it once the token is computed.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype = torch.float32) -> None:
        kernel = int(weight.shape[2])
        self.channels = int(weight.shape[0])
        self.past = kernel - 1
        self.taps = weight.view(self.channels, kernel).t().contiguous()
        self.bias = bias
        self.dtype = dtype

    @property
    def window_size(self) -> int:
        """Return the numbers in a sequence's window."""
        return self.past * self.channels

    def __call__(self, newest: Tensor, window: Tensor, step: StateMetadata) -> tuple[Tensor, Tensor]:
        """Return the output [T, C] for newest [T, C], and the windows after the step [B, past, C] given those before
        it.
        """
        rows, before, after = step.padding(self.past)
        padded = torch.empty(len(newest) + before.numel(), self.channels, device=newest.device)
        padded[rows] = as_stored(newest, self.dtype)
        padded[before] = window
        y = self.taps[self.past] * newest
        if self.bias is not None:
            y = y + self.bias
        for tap in range(self.past):
            ago = self.past - tap
            y = y + self.taps[tap] * padded[rows - ago]
        return y, padded[after]
