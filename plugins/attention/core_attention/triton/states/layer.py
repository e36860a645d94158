"""Layers with a recurrent state, one class per op.

Owns: the parts of each op, and their order. Never does: launch (the parts do), or know a formula (the kernels do).
Called by: `backend.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

import torch
from torch import Tensor

from core.api.specs import StateSpec
from core_attention.triton.states.common import CHANNEL_TILE, States, scratch, table
from core_attention.triton.states.convolution import Convolution
from core_attention.triton.states.recurrence import Rates, Scan, Tokens
from core_attention.triton.states.rest import Finish, multiply, normalize, projected
from core_runtime.contracts import BatchView


class StateLayer(Protocol):
    """A layer with a state, bound to its cache."""

    def forward(self, inputs: Tensor, view: BatchView, out: Tensor) -> None:
        """Compute out [T, W'] of inputs [T, W] and advance the states. Rows beyond the step's own may hold anything."""
        ...


class ShortConv:
    """A layer of the op `short_conv`."""

    def __init__(self, spec: StateSpec, states: States, params: Mapping[str, Tensor], chunked: bool) -> None:
        self.convolution = Convolution(params["conv.weight"], params.get("conv.bias"), states, gated=True)

    def forward(self, inputs: Tensor, view: BatchView, out: Tensor) -> None:
        """Compute out [T, C] of inputs [T, 3 C]."""
        self.convolution(inputs, view, out)


class Mamba1:
    """A layer of the op `mamba1`."""

    def __init__(self, spec: StateSpec, states: States, params: Mapping[str, Tensor], chunked: bool) -> None:
        sizes = spec.sizes
        self.channels = sizes["channels"]
        self.state = sizes["state"]
        self.rank = sizes["rank"]
        self.normed = spec.choices["norm"] != "none"
        self.eps = spec.numbers["norm_eps"]
        self.convolution = Convolution(params["conv1d.weight"], params.get("conv1d.bias"), states)
        self.x_proj = table(params["x_proj.weight"])
        self.dt_proj = table(params["dt_proj.weight"])
        self.dt_bias = table(params["dt_proj.bias"])
        self.rate = -torch.exp(table(params["A_log"]))
        self.skip = table(params["D"])
        names = ("dt_layernorm.weight", "b_layernorm.weight", "c_layernorm.weight")
        self.norm_weights = [table(params[name]) if name in params else None for name in names]
        self.scan = Scan(spec.op, 1, 1, self.channels, self.state, states)

    def forward(self, inputs: Tensor, view: BatchView, out: Tensor) -> None:
        """Compute out [T, D] of inputs [T, 2 D]."""
        mixed = scratch(inputs, self.channels)
        self.convolution(inputs, view, mixed)
        selected = scratch(inputs, len(self.x_proj))
        multiply(mixed, self.x_proj, selected)
        parts = selected.split([self.rank, self.state, self.state], 1)
        if self.normed:
            for part, weight in zip(parts, self.norm_weights, strict=True):
                normalize(part, weight, self.eps)
        steps = scratch(inputs, self.channels)
        multiply(parts[0], self.dt_proj, steps, self.dt_bias)
        y = scratch(inputs, self.channels)
        rates = Rates(self.rate, self.rate)
        self.scan(Tokens(mixed, steps, parts[1], steps), rates, view, y)
        gates = inputs[:, self.channels :]
        Finish(self.channels, CHANNEL_TILE, skip=self.skip, skip_width=1)(y, mixed, gates, out)


class Mamba2:
    """A layer of the op `mamba2`."""

    def __init__(self, spec: StateSpec, states: States, params: Mapping[str, Tensor], chunked: bool) -> None:
        sizes = spec.sizes
        numbers = spec.numbers
        heads = sizes["heads"]
        self.inner = heads * sizes["head_size"]
        shared = sizes["groups"] * sizes["state"]
        widths = {"x_scale": self.inner, "b_scale": shared, "c_scale": shared}
        scales = [torch.full((width,), numbers.get(name, 1.0)) for name, width in widths.items()]
        scale = torch.cat(scales)
        self.channels = len(scale)
        self.convolution = Convolution(params["conv1d.weight"], params.get("conv1d.bias"), states, scale=scale)
        self.rates = Rates(-torch.exp(table(params["A_log"])), table(params["dt_bias"]))
        self.scan = Scan(spec.op, heads, sizes["groups"], sizes["head_size"], sizes["state"], states, numbers, chunked)
        norm = spec.choices["norm"]
        weight = params.get("norm.weight")
        self.finish = Finish(
            self.inner,
            self.inner // sizes["norm_groups"] if norm != "none" else CHANNEL_TILE,
            skip=table(params["D"]),
            skip_width=sizes["head_size"],
            norm=norm,
            weight=None if weight is None else table(weight),
            gate_scale=numbers.get("z_scale", 1.0),
            eps=numbers["norm_eps"],
        )

    def forward(self, inputs: Tensor, view: BatchView, out: Tensor) -> None:
        """Compute out [T, H·P] of inputs [T, W]."""
        mixed = scratch(inputs, self.channels)
        self.convolution(inputs[:, self.inner :], view, mixed)
        steps = inputs[:, self.inner + self.channels :]
        y = scratch(inputs, self.inner)
        self.scan(Tokens(mixed, steps, mixed, steps), self.rates, view, y)
        self.finish(y, mixed, inputs, out)


class Delta:
    """A layer of the op `gated_delta` or `kda`."""

    def __init__(self, spec: StateSpec, states: States, params: Mapping[str, Tensor], chunked: bool) -> None:
        sizes = spec.sizes
        by_channel = spec.op == "kda"
        heads = sizes["heads"] if by_channel else sizes["value_heads"]
        key_heads = sizes["heads"] if by_channel else sizes["key_heads"]
        keys = key_heads * sizes["key_size"]
        self.values = heads * sizes["value_size"]
        self.channels = 2 * keys + self.values
        self.convolution = Convolution(_delta_taps(params), None, states)
        rate = torch.exp(table(params["A_log"]).flatten())
        self.rates = Rates(rate if by_channel else -rate, table(params["dt_bias"]))
        self.scan = Scan(
            spec.op, heads, key_heads, sizes["value_size"], sizes["key_size"], states, spec.numbers, chunked
        )
        weight = params["o_norm.weight" if by_channel else "norm.weight"]
        self.finish = Finish(
            self.values,
            sizes["value_size"],
            norm="before_gate",
            weight=table(weight),
            weight_shared=True,
            sigmoid=by_channel,
            eps=spec.numbers["norm_eps"],
        )
        self.widths = [self.channels, self.values, heads, heads]
        if by_channel:
            decay_width = sizes["decay_rank"] or keys
            gate_width = sizes["gate_rank"] or self.values
            self.widths = [self.channels, decay_width, heads, gate_width]
        self.by_channel = by_channel
        products = [params.get(name) for name in ("f_b_proj.weight", "g_b_proj.weight")]
        self.decay_proj, self.gate_proj = (None if weight is None else table(weight) for weight in products)

    def forward(self, inputs: Tensor, view: BatchView, out: Tensor) -> None:
        """Compute out [T, Hv·V] of inputs [T, W]."""
        mixed = scratch(inputs, self.channels)
        self.convolution(inputs, view, mixed)
        _, second, betas, last = inputs.split(self.widths, 1)
        steps, gates = (second, last) if self.by_channel else (last, second)
        steps = projected(steps, self.decay_proj)
        gates = projected(gates, self.gate_proj)
        y = scratch(inputs, self.values)
        self.scan(Tokens(mixed, steps, mixed, betas), self.rates, view, y)
        self.finish(y, mixed, gates, out)


OPS: Final[Mapping[str, Callable[[StateSpec, States, Mapping[str, Tensor], bool], StateLayer]]] = {
    "short_conv": ShortConv,
    "mamba1": Mamba1,
    "mamba2": Mamba2,
    "gated_delta": Delta,
    "kda": Delta,
}


def bind_states(spec: StateSpec, raw: Tensor, params: Mapping[str, Tensor], chunked: bool) -> StateLayer:
    """Bind an op to a layer's bytes, uint8 [num_blocks, block_bytes]. chunked: see `TritonAttention`."""
    words = raw.shape[1] // 4
    recurrent = _recurrent_size(spec)
    states = States(raw.view(torch.float32).flatten(), words, spec.state_size - recurrent)
    return OPS[spec.op](spec, states, params, chunked)


def _recurrent_size(spec: StateSpec) -> int:
    """Return the numbers of a state after its window."""
    sizes = spec.sizes
    if spec.op == "short_conv":
        return 0
    if spec.op == "mamba1":
        return sizes["channels"] * sizes["state"]
    if spec.op == "mamba2":
        return sizes["heads"] * sizes["head_size"] * sizes["state"]
    heads = sizes["heads"] if spec.op == "kda" else sizes["value_heads"]
    return heads * sizes["value_size"] * sizes["key_size"]


def _delta_taps(params: Mapping[str, Tensor]) -> Tensor:
    """Return the taps of q, k and v joined; a checkpoint may have one tensor or three."""
    weight = params.get("conv1d.weight")
    if weight is None:
        weight = torch.cat([params[f"{part}_conv1d.weight"] for part in "qkv"])
    return weight
