"""Layers with a state in plain torch: the reference that every other backend is tested against.

Owns: one class an op. Never does: multiply with the projections around it. Called by: `backend.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from core.api.specs import StateSpec
from core.layers.states import StateStore
from core.plugin.contracts import BatchView


class Padding(NamedTuple):
    """The places of a step's rows once the past of each sequence is put in front of them.

    rows: int64 [T], the step's rows.
    before: int64 [B, past], the past of each sequence in front of this step.
    after: int64 [B, past], its past behind this step.
    """

    rows: Tensor
    before: Tensor
    after: Tensor


class StateMetadata:
    """One step of layers with a state.

    view: the step without its padded rows and sequences, if there are any.
    """

    def __init__(self, view: BatchView) -> None:
        self.view = _live(view)
        self._paddings: dict[int, Padding] = {}

    def padding(self, past: int) -> Padding:
        """With `past` rows for each sequence, made once for all layers."""
        if past not in self._paddings:
            self._paddings[past] = self._lay_out(past)
        return self._paddings[past]

    def _lay_out(self, past: int) -> Padding:
        view = self.view
        device = view.cu_seqlens_q.device
        lengths = torch.tensor(view.query_lens, device=device)
        sequences = torch.arange(view.num_seqs, device=device)
        owner = torch.repeat_interleave(sequences, lengths)
        rows = torch.arange(view.num_tokens, device=device) + (owner + 1) * past
        last_rows = rows[lengths.cumsum(0) - 1]
        ends = last_rows.unsqueeze(1) + 1
        begins = ends - lengths.unsqueeze(1)
        back = torch.arange(-past, 0, device=device)
        return Padding(rows, begins + back, ends + back)


class ShortConv:
    """`short_conv`: y = C * convolution of B * x, tap by tap, so that a row's bits depend on its own inputs alone."""

    def __init__(self, spec: StateSpec, raw: Tensor, params: Mapping[str, Tensor]) -> None:
        kernel = spec.sizes["kernel"]
        self.past = kernel - 1
        self.channels = spec.sizes["channels"]
        self.states = StateStore(raw, (self.past, self.channels))
        self.taps = params["conv.weight"].view(self.channels, kernel).t().contiguous()
        self.bias = params.get("conv.bias")

    def forward(self, inputs: Tensor, step: StateMetadata, out: Tensor) -> None:
        """out [T, C] of inputs [T, 3 C]: each tap is one product over the rows of all sequences."""
        num_tokens = step.view.num_tokens
        inputs = inputs[:num_tokens]
        b, c, x = inputs.float().split(self.channels, dim=1)
        rows, before, after = step.padding(self.past)
        newest = b * x
        padded = torch.empty(len(inputs) + before.numel(), self.channels, device=inputs.device)
        padded[rows] = newest
        padded[before] = self.states.read(step.view)
        self.states.write(step.view, padded[after])
        y = self.taps[self.past] * newest
        if self.bias is not None:
            y = y + self.bias
        for tap in range(self.past):
            ago = self.past - tap
            y = y + self.taps[tap] * padded[rows - ago]
        out[:num_tokens].copy_(c * y)


def _live(view: BatchView) -> BatchView:
    """The step without its padding, which lies behind everything else."""
    num_tokens = sum(view.query_lens)
    if num_tokens == view.num_tokens and 0 not in view.query_lens:
        return view
    num_seqs = len(view.query_lens) - view.query_lens.count(0)
    return replace(
        view,
        num_tokens=num_tokens,
        num_seqs=num_seqs,
        query_lens=view.query_lens[:num_seqs],
        seq_lens_list=view.seq_lens_list[:num_seqs],
        cu_seqlens_q=view.cu_seqlens_q[: num_seqs + 1],
        seq_lens=view.seq_lens[:num_seqs],
        block_table=view.block_table[:num_seqs],
        slot_mapping=view.slot_mapping[:num_tokens],
        positions=view.positions[:num_tokens],
    )


OPS = {"short_conv": ShortConv}
