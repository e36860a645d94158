"""A layer of the op `gated_delta`, whose recurrence the library computes in chunks.

Owns: the library's inputs, and the recurrent states around its call. Never does: choose who computes a step. Called by:
the backend.

The signature is that of `chunk_gated_delta_rule` in fla-core 0.6.0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from core.api.specs import StateSpec
from core_attention.triton.states.common import scratch
from core_attention.triton.states.layer import Delta
from core_runtime.contracts import BatchView
from core_runtime.layers.states import StateStore


@dataclass(frozen=True, slots=True)
class Prompts:
    """The sequences of a step, without padding.

    count: of sequences. tokens: of all of them.
    ends: int64 [count + 1] on the host, 0 and the end of each. on_device: the same on the device.
    """

    count: int
    tokens: int
    ends: Tensor
    on_device: Tensor


class ChunkedDelta:
    """A layer bound to its cache. own: the layer of the own kernels. rule: the library's `chunk_gated_delta_rule`."""

    def __init__(self, spec: StateSpec, raw: Tensor, own: Delta, rule: Any) -> None:
        sizes = spec.sizes
        self.own = own
        self.shape = (sizes["value_heads"], sizes["value_size"], sizes["key_size"])
        self.key_heads = sizes["key_heads"]
        self.window = spec.state_size - torch.Size(self.shape).numel()
        self.store = StateStore(raw, (spec.state_size,))
        self.eps = spec.numbers["qk_eps"]
        self.beta_scale = spec.numbers.get("beta_scale", 1.0)
        self.rule = rule

    def forward_chunks(self, inputs: Tensor, view: BatchView, prompts: Prompts, out: Tensor) -> None:
        """Compute out [T, Hv·V] of inputs [T, W] and advance the states; padded rows are left as they are."""
        own = self.own
        mixed = scratch(inputs, own.channels)
        own.convolution(inputs, view, mixed)
        _, gates, betas, steps = inputs.split(own.widths, 1)
        live = slice(prompts.tokens)
        q, k, v = self._heads(mixed[live], inputs.dtype)
        decay = own.rates.rate * F.softplus(steps[live].float() + own.rates.bias)
        beta = self.beta_scale * torch.sigmoid(betas[live].float())
        real = _without_padding(view, prompts.count)
        held = self.store.held(real)  # after the convolution, which has moved the windows beside these states on
        states = held[:, self.window :].view(-1, *self.shape)
        initial = states.clone()
        initial[self.store.begins(real)] = 0
        found, final = self.rule(
            q,
            k,
            v,
            decay.unsqueeze(0),
            beta.unsqueeze(0),
            initial_state=initial,
            output_final_state=True,
            state_v_first=True,
            cu_seqlens=prompts.on_device,
            cu_seqlens_cpu=prompts.ends,
        )
        states.copy_(final)
        self.store.write(real, held)
        y = scratch(inputs, own.values)
        y[live] = found[0].flatten(1)
        own.finish(y, mixed, gates, out)

    def _heads(self, mixed: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """Return q and k [1, T, Hk, K] of unit length, and v [1, T, Hv, V]."""
        _, value_size, key_size = self.shape
        keys = self.key_heads * key_size
        q, k, v = mixed.split([keys, keys, self.own.values], 1)
        unit = [self._unit(part.unflatten(1, (-1, key_size))).to(dtype).unsqueeze(0) for part in (q, k)]
        return unit[0], unit[1], v.unflatten(1, (-1, value_size)).to(dtype).unsqueeze(0)

    def _unit(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + self.eps)


def _without_padding(view: BatchView, count: int) -> BatchView:
    """Return the view of the step's own sequences, as far as states are concerned."""
    return replace(
        view,
        num_seqs=count,
        query_lens=view.query_lens[:count],
        seq_lens_list=view.seq_lens_list[:count],
        block_table=view.block_table[:count],
    )
