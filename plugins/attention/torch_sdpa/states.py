"""Layers with a state in plain torch: the reference that every other backend is tested against.

Owns: one class an op. Never does: multiply with the projections around it. Called by: `backend.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from core.api.specs import StateSpec
from core.layers.states import StateStore
from core.plugin.contracts import BatchView


class StateMetadata:
    """One step of layers with a state. last: int64 [B], the row of each sequence's newest token. owner: int64 [T]."""

    def __init__(self, view: BatchView) -> None:
        device = view.cu_seqlens_q.device
        lengths = torch.tensor(view.query_lens, device=device)
        self.view = view
        self.last = lengths.cumsum(0) - 1
        self.owner = torch.repeat_interleave(torch.arange(view.num_seqs, device=device), lengths)


class ShortConv:
    """`short_conv`: y = C * convolution of B * x, tap by tap, so that a row's bits depend on its own inputs alone."""

    def __init__(self, spec: StateSpec, raw: Tensor, params: Mapping[str, Tensor]) -> None:
        self.past, self.channels = spec.sizes["kernel"] - 1, spec.sizes["channels"]
        self.states = StateStore(raw, (self.past, self.channels))
        self.taps = params["conv.weight"].view(self.channels, self.past + 1).t().contiguous()
        self.bias = params.get("conv.bias")

    def forward(self, inputs: Tensor, step: StateMetadata, out: Tensor) -> None:
        """out [T, C] of inputs [T, 3 C].

        The past of each sequence is put in front of its rows, so that each tap is one product over all rows.
        """
        b, c, x = inputs.float().split(self.channels, dim=1)
        rows = torch.arange(len(inputs), device=inputs.device) + (step.owner + 1) * self.past
        before = torch.arange(-self.past, 0, device=inputs.device)
        padded = torch.empty(len(inputs) + step.view.num_seqs * self.past, self.channels, device=inputs.device)
        padded[rows] = b * x
        first = torch.cat([rows[:1], rows[step.last[:-1] + 1]])
        padded[first.unsqueeze(1) + before] = self.states.read(step.view)
        self.states.write(step.view, padded[rows[step.last].unsqueeze(1) + before + 1])
        y = torch.zeros_like(x) if self.bias is None else self.bias.expand_as(x)
        for tap in range(self.past + 1):
            y = y + self.taps[tap] * padded[rows - self.past + tap]
        out.copy_(c * y)


OPS = {"short_conv": ShortConv}
