"""One bound layer with a state, and the launches of its kernels.

Owns: the place of its states, and the order of its kernels. Never does: know a formula (the kernels do).
Called by: `backend.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
import triton
from torch import Tensor

from core.api.specs import StateSpec
from core.plugin.contracts import BatchView
from core_plugins.attention.triton.states.convolve_kernel import convolve, slide
from core_plugins.attention.triton.states.finish_kernel import finish, norm_part, product
from core_plugins.attention.triton.states.scan_kernel import scan

CHANNEL_TILE: Final = 256
PRODUCT_TILE: Final = 16
PRODUCT_STEP: Final = 128
STATE_TILE: Final = 2048
"""Numbers of a state that a program keeps."""
FLAGS: Final = {"num_warps": 4, "enable_fp_fusion": False}


@dataclass(frozen=True, slots=True)
class States:
    """Where a layer's states lie. cache: float32, all blocks. words: numbers of a block. window: of the convolution."""

    cache: Tensor
    words: int
    window: int


class StateLayer(Protocol):
    """One bound layer."""

    def forward(self, inputs: Tensor, view: BatchView, out: Tensor) -> None:
        """out [T, W'] of inputs [T, W]; the states move on. Rows behind the step's own may hold anything."""
        ...


class Convolution:
    """The causal depthwise convolution of a layer.

    weight: [C, 1, kernel]. gated: what it sees and gives is that of `short_conv`. scale: [C] of its taps, or None.
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
        """out [T, C] of x [T, ...]; the windows move on."""
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


class ShortConv:
    """The op `short_conv`."""

    def __init__(self, spec: StateSpec, states: States, params: Mapping[str, Tensor]) -> None:
        self.convolution = Convolution(params["conv.weight"], params.get("conv.bias"), states, gated=True)

    def forward(self, inputs: Tensor, view: BatchView, out: Tensor) -> None:
        """out [T, C] of inputs [T, 3 C]."""
        self.convolution(inputs, view, out)


class Mamba1:
    """The op `mamba1`."""

    def __init__(self, spec: StateSpec, states: States, params: Mapping[str, Tensor]) -> None:
        sizes = spec.sizes
        self.channels = sizes["channels"]
        self.state = sizes["state"]
        self.rank = sizes["rank"]
        self.normed = spec.choices["norm"] != "none"
        self.eps = spec.numbers["norm_eps"]
        self.convolution = Convolution(params["conv1d.weight"], params.get("conv1d.bias"), states)
        self.x_proj = _table(params["x_proj.weight"])
        self.dt_proj = _table(params["dt_proj.weight"])
        self.dt_bias = _table(params["dt_proj.bias"])
        self.rate = -torch.exp(_table(params["A_log"]))
        self.skip = _table(params["D"])
        names = ("dt_layernorm.weight", "b_layernorm.weight", "c_layernorm.weight")
        self.norm_weights = [_table(params[name]) if name in params else None for name in names]
        self.scan = Scan(spec.op, 1, 1, self.channels, self.state, states)

    def forward(self, inputs: Tensor, view: BatchView, out: Tensor) -> None:
        """out [T, D] of inputs [T, 2 D]."""
        mixed = _scratch(inputs, self.channels)
        self.convolution(inputs, view, mixed)
        selected = _scratch(inputs, len(self.x_proj))
        multiply(mixed, self.x_proj, selected)
        parts = selected.split([self.rank, self.state, self.state], 1)
        if self.normed:
            for part, weight in zip(parts, self.norm_weights, strict=True):
                normalize(part, weight, self.eps)
        steps = _scratch(inputs, self.channels)
        multiply(parts[0], self.dt_proj, steps, self.dt_bias)
        y = _scratch(inputs, self.channels)
        rates = Rates(self.rate, self.rate)
        self.scan(Tokens(mixed, steps, parts[1], steps), rates, view, y)
        gates = inputs[:, self.channels :]
        Finish(self.channels, CHANNEL_TILE, skip=self.skip, skip_width=1)(y, mixed, gates, out)


class Mamba2:
    """The op `mamba2`."""

    def __init__(self, spec: StateSpec, states: States, params: Mapping[str, Tensor]) -> None:
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
        self.rates = Rates(-torch.exp(_table(params["A_log"])), _table(params["dt_bias"]))
        self.scan = Scan(spec.op, heads, sizes["groups"], sizes["head_size"], sizes["state"], states, numbers)
        norm = spec.choices["norm"]
        weight = params.get("norm.weight")
        self.finish = Finish(
            self.inner,
            self.inner // sizes["norm_groups"] if norm != "none" else CHANNEL_TILE,
            skip=_table(params["D"]),
            skip_width=sizes["head_size"],
            norm=norm,
            weight=None if weight is None else _table(weight),
            gate_scale=numbers.get("z_scale", 1.0),
            eps=numbers["norm_eps"],
        )

    def forward(self, inputs: Tensor, view: BatchView, out: Tensor) -> None:
        """out [T, H·P] of inputs [T, W]."""
        mixed = _scratch(inputs, self.channels)
        self.convolution(inputs[:, self.inner :], view, mixed)
        steps = inputs[:, self.inner + self.channels :]
        y = _scratch(inputs, self.inner)
        self.scan(Tokens(mixed, steps, mixed, steps), self.rates, view, y)
        self.finish(y, mixed, inputs, out)


class Delta:
    """The ops `gated_delta` and `kda`."""

    def __init__(self, spec: StateSpec, states: States, params: Mapping[str, Tensor]) -> None:
        sizes = spec.sizes
        by_channel = spec.op == "kda"
        heads = sizes["heads"] if by_channel else sizes["value_heads"]
        key_heads = sizes["heads"] if by_channel else sizes["key_heads"]
        keys = key_heads * sizes["key_size"]
        self.values = heads * sizes["value_size"]
        self.channels = 2 * keys + self.values
        self.convolution = Convolution(_delta_taps(params), None, states)
        rate = torch.exp(_table(params["A_log"]).flatten())
        self.rates = Rates(rate if by_channel else -rate, _table(params["dt_bias"]))
        self.scan = Scan(spec.op, heads, key_heads, sizes["value_size"], sizes["key_size"], states, spec.numbers)
        weight = params["o_norm.weight" if by_channel else "norm.weight"]
        self.finish = Finish(
            self.values,
            sizes["value_size"],
            norm="before_gate",
            weight=_table(weight),
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
        self.decay_proj, self.gate_proj = (None if weight is None else _table(weight) for weight in products)

    def forward(self, inputs: Tensor, view: BatchView, out: Tensor) -> None:
        """out [T, Hv·V] of inputs [T, W]."""
        mixed = _scratch(inputs, self.channels)
        self.convolution(inputs, view, mixed)
        _, second, betas, last = inputs.split(self.widths, 1)
        steps, gates = (second, last) if self.by_channel else (last, second)
        steps = projected(steps, self.decay_proj)
        gates = projected(gates, self.gate_proj)
        y = _scratch(inputs, self.values)
        self.scan(Tokens(mixed, steps, mixed, betas), self.rates, view, y)
        self.finish(y, mixed, gates, out)


OPS: Final[Mapping[str, Callable[[StateSpec, States, Mapping[str, Tensor]], StateLayer]]] = {
    "short_conv": ShortConv,
    "mamba1": Mamba1,
    "mamba2": Mamba2,
    "gated_delta": Delta,
    "kda": Delta,
}


def bind_states(spec: StateSpec, raw: Tensor, params: Mapping[str, Tensor]) -> StateLayer:
    """The op on a layer's bytes, uint8 [num_blocks, block_bytes]."""
    words = raw.shape[1] // 4
    recurrent = _recurrent_size(spec)
    states = States(raw.view(torch.float32).flatten(), words, spec.state_size - recurrent)
    return OPS[spec.op](spec, states, params)


def _recurrent_size(spec: StateSpec) -> int:
    """Numbers of a state behind its window."""
    sizes = spec.sizes
    if spec.op == "short_conv":
        return 0
    if spec.op == "mamba1":
        return sizes["channels"] * sizes["state"]
    if spec.op == "mamba2":
        return sizes["heads"] * sizes["head_size"] * sizes["state"]
    heads = sizes["heads"] if spec.op == "kda" else sizes["value_heads"]
    return heads * sizes["value_size"] * sizes["key_size"]


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a scan reads of each token, see `scan`; steps and betas may be strided."""

    mixed: Tensor
    steps: Tensor
    selected: Tensor
    betas: Tensor


@dataclass(frozen=True, slots=True)
class Rates:
    """Tables of a scan, float32. rate: of decay. bias: of dt."""

    rate: Tensor
    bias: Tensor


class Scan:
    """The recurrence of a layer, see `scan`. shared: heads of keys, or groups. rows, size: of a head's state."""

    def __init__(
        self,
        op: str,
        heads: int,
        shared: int,
        rows: int,
        size: int,
        states: States,
        numbers: Mapping[str, float] | None = None,
    ) -> None:
        numbers = numbers or {}
        own = scan_constants(op, heads, shared, rows, size)
        self.states = states
        self.grid = (heads, triton.cdiv(rows, own["TILE"]))
        floor = numbers.get("decay_floor")
        self.scalars = (
            numbers.get("beta_scale", 1.0),
            numbers.get("qk_eps", 0.0),
            numbers.get("dt_scale", 1.0),
            numbers.get("dt_min", 0.0),
            numbers.get("dt_max", math.inf),
            floor or 0.0,
        )
        self.constants = {
            **own,
            "BASE": states.window,
            "WORDS": states.words,
            "HAS_FLOOR": floor is not None,
            **FLAGS,
        }

    def __call__(self, tokens: Tokens, rates: Rates, view: BatchView, out: Tensor) -> None:
        """out [T, HEADS * ROWS]; the states move on."""
        read = (tokens.mixed, tokens.steps, tokens.selected, tokens.betas)
        strides = [tensor.stride(0) for tensor in (*read, out)]
        places = (view.cu_seqlens_q, view.seq_lens, view.block_table, view.block_table.stride(0))
        tables = (out, self.states.cache, rates.rate, rates.bias)
        scan[(view.num_seqs, *self.grid)](*read, *tables, *places, *strides, *self.scalars, **self.constants)


def scan_constants(op: str, heads: int, shared: int, rows: int, size: int) -> dict[str, Any]:
    """Constants of `scan` that are its shape; see `Scan`."""
    padded = triton.next_power_of_2(size)
    tile = min(triton.next_power_of_2(rows), max(1, STATE_TILE // padded))
    return {"OP": op, "HEADS": heads, "SHARED": shared, "ROWS": rows, "TILE": tile, "SIZE": size, "PADDED": padded}


class Finish:
    """What follows a scan, see `finish`. width: numbers of a row. unit: those that have one norm."""

    def __init__(
        self,
        width: int,
        unit: int,
        *,
        skip: Tensor | None = None,
        skip_width: int = 0,
        norm: str = "none",
        weight: Tensor | None = None,
        weight_shared: bool = False,
        sigmoid: bool = False,
        gate_scale: float = 1.0,
        eps: float = 0.0,
    ) -> None:
        self.skip = skip
        self.weight = weight
        self.units = triton.cdiv(width, unit)
        self.scalars = (gate_scale, eps)
        self.constants = {
            "WIDTH": width,
            "UNIT": unit,
            "PADDED": triton.next_power_of_2(unit),
            "SKIP_WIDTH": skip_width,
            "NORM": norm,
            "WEIGHT_SHARED": weight_shared,
            "SIGMOID": sigmoid,
            **FLAGS,
        }

    def __call__(self, y: Tensor, mixed: Tensor, gates: Tensor, out: Tensor) -> None:
        """out [T, width]."""
        skip = y if self.skip is None else self.skip
        weight = y if self.weight is None else self.weight
        strides = [tensor.stride(0) for tensor in (y, mixed, gates, out)]
        grid = (len(y), self.units)
        finish[grid](y, mixed, gates, skip, weight, out, *strides, *self.scalars, **self.constants)


def multiply(x: Tensor, weight: Tensor, out: Tensor, bias: Tensor | None = None) -> None:
    """out [T, N] = x [T, K] @ weight.T, with a bias its softplus."""
    outputs, inputs = weight.shape
    grid = (len(x), triton.cdiv(outputs, PRODUCT_TILE))
    constants = {"OUTPUTS": outputs, "INPUTS": inputs, "TILE": PRODUCT_TILE, "STEP": PRODUCT_STEP, **FLAGS}
    added = weight if bias is None else bias
    product[grid](x, weight, added, out, x.stride(0), out.stride(0), SOFTPLUS=bias is not None, **constants)


def projected(x: Tensor, weight: Tensor | None) -> Tensor:
    """x [T, K] times a matrix, float32, or x itself."""
    if weight is None:
        return x
    out = _scratch(x, len(weight))
    multiply(x, weight, out)
    return out


def normalize(part: Tensor, weight: Tensor | None, eps: float) -> None:
    """In place over the rows of a part [T, W]."""
    width = part.shape[1]
    table = part if weight is None else weight
    constants = {"WIDTH": width, "PADDED": triton.next_power_of_2(width), **FLAGS}
    norm_part[(len(part),)](part, table, part.stride(0), eps, HAS_WEIGHT=weight is not None, **constants)


def _scratch(like: Tensor, width: int) -> Tensor:
    """float32 [T, width] on the device, for one call."""
    return torch.empty(len(like), width, device=like.device)


def _table(tensor: Tensor) -> Tensor:
    return tensor.detach().float().contiguous()


def _delta_taps(params: Mapping[str, Tensor]) -> Tensor:
    """Of q, k and v side by side, whose taps may be one tensor or three."""
    weight = params.get("conv1d.weight")
    if weight is None:
        weight = torch.cat([params[f"{part}_conv1d.weight"] for part in "qkv"])
    return weight
