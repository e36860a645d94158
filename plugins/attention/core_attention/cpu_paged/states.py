"""Layers with a recurrent state on the native kernels of the `cpu` platform.

Owns: the passing of each op's tensors to the extension (`native/states.cpp`). Never does: compute a step itself.
Called by: `backend.py`.

The ops are defined in `core_runtime.models.state_ops` and `StateSpec`. A row's bits depend on its earlier tokens alone:
not on chunks, batch, blocks or threads. Products within an op use the native linear kernels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from core.api.specs import StateSpec
from core_attention.cpu_paged.limits import ELEMENTS
from core_platforms.cpu.native_linear import NativeLinear
from core_runtime.weights.formats import Dense

OPS = ("short_conv", "mamba1", "mamba2", "gated_delta", "kda")
"""Op names, in the order of the extension's numbers."""
NORMS = {"none": 0, "after_gate": 1, "before_gate": 2, "plain": 3, "weighted": 4}


@dataclass(slots=True)
class PackedState:
    """Arguments of `_native.state_pack`, in its order.

    tables: contiguous float32 tensors by name: taps, bias, rate, dt_bias, skip, norm, b_norm, c_norm.
    first, second: the op's own products, or None.
    """

    op: str
    channels: int
    kernel: int
    heads: int = 0
    rows: int = 0
    length: int = 0
    key_heads: int = 1
    groups: int = 1
    rank: int = 0
    gate_rank: int = 0
    norm: str = "none"
    norm_groups: int = 1
    tables: dict[str, Tensor | None] = field(default_factory=dict)
    first: NativeLinear | None = None
    second: NativeLinear | None = None

    def handle(self, native: ModuleType, dtype: str, numbers: Mapping[str, float]) -> Any:
        """Build the extension's description of the layer. The tensors must outlive it."""
        window, _, rest = dtype.partition("+")
        sizes = (
            OPS.index(self.op),
            ELEMENTS[window],
            ELEMENTS[rest or window],
            self.channels,
            self.kernel,
            self.heads,
            self.rows,
            self.length,
            self.key_heads,
            self.groups,
            self.rank,
            self.gate_rank,
            NORMS[self.norm],
            self.norm_groups,
        )
        reals = (
            numbers.get("norm_eps", 0.0),
            numbers.get("qk_eps", 0.0),
            numbers.get("beta_scale", 1.0),
            numbers.get("dt_min", 0.0),
            numbers.get("dt_max", math.inf),
            numbers.get("z_scale", 1.0),
            numbers.get("dt_scale", 1.0),
            numbers.get("decay_floor", 0.0),
        )
        names = ("taps", "bias", "rate", "dt_bias", "skip", "norm", "b_norm", "c_norm")
        addresses = []
        for name in names:
            table = self.tables.get(name)
            addresses.append(0 if table is None else table.data_ptr())
        products = [None if product is None else product.packed for product in (self.first, self.second)]
        return native.state_pack(*sizes, *reals, *addresses, *products)


class StateLayer:
    """A layer with a state, bound to its cache.

    spec: its sizes.
    raw: its blocks, which must stay alive.
    packed: its tensors, which must stay alive, too.
    handle: the extension's description.
    """

    __slots__ = ("block_bytes", "handle", "packed", "pointer", "raw", "spec")

    def __init__(
        self, native: ModuleType, spec: StateSpec, dtype: str, raw: Tensor, params: Mapping[str, Tensor]
    ) -> None:
        self.spec = spec
        self.raw = raw
        self.pointer = raw.data_ptr()
        self.block_bytes = raw.shape[1]
        tensors = {name: tensor.detach().float() for name, tensor in params.items()}
        self.packed = PACKERS[spec.op](native, spec, tensors)
        self.handle = self.packed.handle(native, dtype, spec.numbers)


def _taps(weight: Tensor, bias: Tensor | None, scale: Tensor | None = None) -> dict[str, Tensor | None]:
    """Convert the convolution's weight [C, 1, kernel] to its tables: taps [kernel, C]."""
    taps = weight[:, 0].t()
    if scale is not None:
        taps = taps * scale
    return {"taps": taps.contiguous(), "bias": None if bias is None else bias.contiguous()}


def _product(native: ModuleType, weight: Tensor, bias: Tensor | None = None) -> NativeLinear:
    """Pack a float32 product, with its weight in 16 bits where that is exact."""
    narrow = weight.bfloat16()
    exact = torch.equal(narrow.float(), weight)
    held = narrow if exact else weight
    return NativeLinear(native, Dense(held.contiguous()), "none", bias)


def _rate(params: Mapping[str, Tensor]) -> Tensor:
    """Return -exp(A_log), for any of the shapes that checkpoints use."""
    return -torch.exp(params["A_log"]).contiguous()


def _short_conv(native: ModuleType, spec: StateSpec, params: Mapping[str, Tensor]) -> PackedState:
    tables = _taps(params["conv.weight"], params.get("conv.bias"))
    return PackedState("short_conv", spec.sizes["channels"], spec.sizes["kernel"], tables=tables)


def _mamba1(native: ModuleType, spec: StateSpec, params: Mapping[str, Tensor]) -> PackedState:
    sizes = spec.sizes
    channels = sizes["channels"]
    tables = _taps(params["conv1d.weight"], params.get("conv1d.bias"))
    tables["rate"] = _rate(params)
    tables["skip"] = params["D"].contiguous()
    tables["norm"] = params.get("dt_layernorm.weight")
    tables["b_norm"] = params.get("b_layernorm.weight")
    tables["c_norm"] = params.get("c_layernorm.weight")
    return PackedState(
        "mamba1",
        channels,
        sizes["kernel"],
        heads=1,
        rows=channels,
        length=sizes["state"],
        rank=sizes["rank"],
        norm=spec.choices["norm"],
        tables=tables,
        first=_product(native, params["x_proj.weight"]),
        second=_product(native, params["dt_proj.weight"], params["dt_proj.bias"]),
    )


def _mamba2(native: ModuleType, spec: StateSpec, params: Mapping[str, Tensor]) -> PackedState:
    sizes = spec.sizes
    inner = sizes["heads"] * sizes["head_size"]
    shared = sizes["groups"] * sizes["state"]
    scale = torch.ones(inner + 2 * shared)
    widths = {"x_scale": inner, "b_scale": shared, "c_scale": shared}
    for part, name in zip(scale.split(list(widths.values())), widths, strict=True):
        part.fill_(spec.numbers.get(name, 1.0))
    tables = _taps(params["conv1d.weight"], params.get("conv1d.bias"), scale)
    tables["rate"] = _rate(params)
    tables["dt_bias"] = params["dt_bias"].contiguous()
    tables["skip"] = params["D"].contiguous()
    tables["norm"] = params.get("norm.weight")
    return PackedState(
        "mamba2",
        len(scale),
        sizes["kernel"],
        heads=sizes["heads"],
        rows=sizes["head_size"],
        length=sizes["state"],
        groups=sizes["groups"],
        norm=spec.choices["norm"],
        norm_groups=sizes["norm_groups"],
        tables=tables,
    )


def _delta_taps(params: Mapping[str, Tensor]) -> dict[str, Tensor | None]:
    """Return the taps of q, k and v joined; a checkpoint may have one tensor or three."""
    weight = params.get("conv1d.weight")
    if weight is None:
        parts = [params[f"{part}_conv1d.weight"] for part in "qkv"]
        weight = torch.cat(parts)
    return _taps(weight, None)


def _gated_delta(native: ModuleType, spec: StateSpec, params: Mapping[str, Tensor]) -> PackedState:
    sizes = spec.sizes
    keys = sizes["key_heads"] * sizes["key_size"]
    values = sizes["value_heads"] * sizes["value_size"]
    tables = _delta_taps(params)
    tables["rate"] = _rate(params)
    tables["dt_bias"] = params["dt_bias"].contiguous()
    tables["norm"] = params["norm.weight"].contiguous()
    return PackedState(
        "gated_delta",
        2 * keys + values,
        sizes["kernel"],
        heads=sizes["value_heads"],
        rows=sizes["value_size"],
        length=sizes["key_size"],
        key_heads=sizes["key_heads"],
        tables=tables,
    )


def _kda(native: ModuleType, spec: StateSpec, params: Mapping[str, Tensor]) -> PackedState:
    sizes = spec.sizes
    keys = sizes["heads"] * sizes["key_size"]
    values = sizes["heads"] * sizes["value_size"]
    tables = _delta_taps(params)
    tables["rate"] = _rate(params)
    tables["dt_bias"] = params["dt_bias"].contiguous()
    tables["norm"] = params["o_norm.weight"].contiguous()
    products = [params.get(name) for name in ("f_b_proj.weight", "g_b_proj.weight")]
    first, second = (None if weight is None else _product(native, weight) for weight in products)
    return PackedState(
        "kda",
        2 * keys + values,
        sizes["kernel"],
        heads=sizes["heads"],
        rows=sizes["value_size"],
        length=sizes["key_size"],
        key_heads=sizes["heads"],
        rank=sizes["decay_rank"],
        gate_rank=sizes["gate_rank"],
        tables=tables,
        first=first,
        second=second,
    )


PACKERS = {
    "short_conv": _short_conv,
    "mamba1": _mamba1,
    "mamba2": _mamba2,
    "gated_delta": _gated_delta,
    "kda": _kda,
}
