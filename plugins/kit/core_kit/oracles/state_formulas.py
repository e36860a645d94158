"""Reference formulas of the ops of layers with a state, in float64, one token after another; and small layers for
testing.

Owns: the kit's own implementation of `StateSpec` and `core_runtime.models.state_ops`. Never does: split a sequence, or
keep a state.
Called by: `core_kit.checks.states`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from core.api.specs import StateSpec
from core_models.lfm2 import short_conv
from core_runtime.models.state_ops.gated_delta import FUSED, gated_delta
from core_runtime.models.state_ops.kda import kda
from core_runtime.models.state_ops.lightning import lightning
from core_runtime.models.state_ops.mamba1 import mamba1
from core_runtime.models.state_ops.mamba2 import mamba2

Formula = Callable[[StateSpec, Tensor, Mapping[str, Tensor]], Tensor]
"""Formula of an op: (spec, inputs [L, W] of one whole sequence, params) → out [L, W'], float64."""


def _convolved(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the convolution [L, C] of x [L, C] in float64."""
    taps = weight.double()[:, 0]
    channels, kernel = taps.shape
    past = torch.zeros(kernel - 1, channels, dtype=torch.float64)
    windows = torch.cat([past, x]).unfold(0, kernel, 1)
    y = (windows * taps).sum(-1)
    return y if bias is None else y + bias.double()


def _rms(x: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps)


def short_conv_formula(spec: StateSpec, inputs: Tensor, params: Mapping[str, Tensor]) -> Tensor:
    """Return C * convolution of B * x."""
    b, c, x = inputs.double().chunk(3, dim=1)
    return c * _convolved(b * x, params["conv.weight"], params.get("conv.bias"))


def mamba2_formula(spec: StateSpec, inputs: Tensor, params: Mapping[str, Tensor]) -> Tensor:
    """Compute `core_runtime.models.state_ops.mamba2` token by token."""
    sizes = spec.sizes
    numbers = spec.numbers
    heads, size, groups = sizes["heads"], sizes["head_size"], sizes["groups"]
    inner = heads * size
    shared = groups * sizes["state"]
    parts = inputs.double().split([inner, inner, shared, shared, heads], dim=1)
    names = ("z_scale", "x_scale", "b_scale", "c_scale", "dt_scale")
    scales = [numbers.get(name, 1.0) for name in names]
    z, x, b, c, dt = [part * scale for part, scale in zip(parts, scales, strict=True)]
    joined = torch.cat([x, b, c], 1)
    mixed = _convolved(joined, params["conv1d.weight"], params.get("conv1d.bias"))
    x, b, c = F.silu(mixed).split([inner, shared, shared], dim=1)
    x = x.unflatten(1, (heads, size))
    b = b.unflatten(1, (groups, -1)).repeat_interleave(heads // groups, dim=1)
    c = c.unflatten(1, (groups, -1)).repeat_interleave(heads // groups, dim=1)
    dt = F.softplus(dt + params["dt_bias"].double())
    dt = dt.clamp(numbers.get("dt_min", 0.0), numbers.get("dt_max"))
    decay = torch.exp(-params["A_log"].double().exp() * dt)
    state = torch.zeros(heads, size, sizes["state"], dtype=torch.float64)
    ys = []
    for t in range(len(inputs)):
        scaled = dt[t].unsqueeze(1) * x[t]
        added = scaled.unsqueeze(2) * b[t].unsqueeze(1)
        state = decay[t].view(-1, 1, 1) * state + added
        read = (state * c[t].unsqueeze(1)).sum(-1)
        ys.append(read)
    skip = params["D"].double().unsqueeze(1)
    y = (torch.stack(ys) + skip * x).flatten(1)
    gate = F.silu(z)
    norm = spec.choices["norm"]
    if norm == "none":
        return y * gate
    gated = y * gate if norm == "after_gate" else y
    by_group = gated.unflatten(1, (sizes["norm_groups"], -1))
    normed = _rms(by_group, numbers["norm_eps"]).flatten(1)
    normed = params["norm.weight"].double() * normed
    return normed if norm == "after_gate" else normed * gate


def mamba1_formula(spec: StateSpec, inputs: Tensor, params: Mapping[str, Tensor]) -> Tensor:
    """Compute `core_runtime.models.state_ops.mamba1` token by token."""
    sizes = spec.sizes
    x, z = inputs.double().chunk(2, dim=1)
    x = F.silu(_convolved(x, params["conv1d.weight"], params.get("conv1d.bias")))
    selected = x @ params["x_proj.weight"].double().t()
    parts = list(selected.split([sizes["rank"], sizes["state"], sizes["state"]], dim=1))
    norm = spec.choices["norm"]
    for index, name in enumerate(("dt_layernorm.weight", "b_layernorm.weight", "c_layernorm.weight")):
        if norm != "none":
            parts[index] = _rms(parts[index], spec.numbers["norm_eps"])
        if norm == "weighted":
            parts[index] = params[name].double() * parts[index]
    rank, b, c = parts
    dt = F.softplus(rank @ params["dt_proj.weight"].double().t() + params["dt_proj.bias"].double())
    rate = -params["A_log"].double().exp()
    state = torch.zeros(sizes["channels"], sizes["state"], dtype=torch.float64)
    ys = []
    for t in range(len(inputs)):
        decay = torch.exp(rate * dt[t].unsqueeze(1))
        added = (dt[t] * x[t]).unsqueeze(1) * b[t]
        state = decay * state + added
        ys.append((state * c[t]).sum(-1))
    y = torch.stack(ys) + params["D"].double() * x
    return y * F.silu(z)


def gated_delta_formula(spec: StateSpec, inputs: Tensor, params: Mapping[str, Tensor]) -> Tensor:
    """Compute `core_runtime.models.state_ops.gated_delta` token by token."""
    sizes = spec.sizes
    keys = sizes["key_heads"] * sizes["key_size"]
    values = sizes["value_heads"] * sizes["value_size"]
    per_key = sizes["value_heads"] // sizes["key_heads"]
    heads = sizes["value_heads"]
    mixed, z, b, a = inputs.double().split([2 * keys + values, values, heads, heads], dim=1)
    q, k, v = _heads(spec, mixed, params, keys, values)
    q = q.repeat_interleave(per_key, dim=1)
    k = k.repeat_interleave(per_key, dim=1)
    rate = params["A_log"].double().exp()
    decay = torch.exp(-rate * F.softplus(a + params["dt_bias"].double()))
    beta = spec.numbers.get("beta_scale", 1.0) * torch.sigmoid(b)
    o = _delta_rule(q, k, v, decay.unsqueeze(2), beta)
    normed = params["norm.weight"].double() * _rms(o, spec.numbers["norm_eps"])
    return normed.flatten(1) * F.silu(z)


def kda_formula(spec: StateSpec, inputs: Tensor, params: Mapping[str, Tensor]) -> Tensor:
    """Compute `core_runtime.models.state_ops.kda` token by token."""
    sizes = spec.sizes
    heads = sizes["heads"]
    keys = heads * sizes["key_size"]
    values = heads * sizes["value_size"]
    widths = [2 * keys + values, sizes["decay_rank"] or keys, heads, sizes["gate_rank"] or values]
    mixed, f, b, g = inputs.double().split(widths, dim=1)
    q, k, v = _heads(spec, mixed, params, keys, values)
    if sizes["decay_rank"]:
        f = f @ params["f_b_proj.weight"].double().t()
    if sizes["gate_rank"]:
        g = g @ params["g_b_proj.weight"].double().t()
    f = (f + params["dt_bias"].double()).unflatten(1, (heads, -1))
    rate = params["A_log"].double().exp().view(heads, 1)
    floor = spec.numbers.get("decay_floor")
    logarithm = -rate * F.softplus(f) if floor is None else floor * torch.sigmoid(rate * f)
    o = _delta_rule(q, k, v, logarithm.exp(), torch.sigmoid(b))
    normed = params["o_norm.weight"].double() * _rms(o, spec.numbers["norm_eps"])
    return normed.flatten(1) * torch.sigmoid(g)


def lightning_formula(spec: StateSpec, inputs: Tensor, params: Mapping[str, Tensor]) -> Tensor:
    """Compute `core_runtime.models.state_ops.lightning` token by token."""
    heads, size = spec.sizes["heads"], spec.sizes["head_size"]
    q, k, v, g = inputs.double().chunk(4, dim=1)
    q, k, v = (F.silu(part).unflatten(1, (heads, size)) for part in (q, k, v))
    numbers = torch.arange(1, heads + 1, dtype=torch.float64)
    decay = torch.exp(-spec.numbers["slope"] * 2 ** (-8 * numbers / heads)).view(-1, 1, 1)
    state = torch.zeros(heads, size, size, dtype=torch.float64)
    outs = []
    for t in range(len(q)):
        state = decay * state + v[t].unsqueeze(2) * k[t].unsqueeze(1)
        outs.append((state @ q[t].unsqueeze(2)).flatten())
    normed = params["norm.weight"].double() * _rms(torch.stack(outs), spec.numbers["norm_eps"])
    return normed * torch.sigmoid(g)


def _heads(
    spec: StateSpec, mixed: Tensor, params: Mapping[str, Tensor], keys: int, values: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k [L, heads, K] and v [L, heads, V] after the convolution; q and k have unit length, q is scaled."""
    weight = params.get("conv1d.weight")
    if weight is None:
        weight = torch.cat([params[f"{part}_conv1d.weight"] for part in "qkv"])
    convolved = F.silu(_convolved(mixed, weight, None))
    q, k, v = convolved.split([keys, keys, values], dim=1)
    size = spec.sizes["key_size"]
    q = q.unflatten(1, (-1, size))
    k = k.unflatten(1, (-1, size))
    eps = spec.numbers["qk_eps"]
    q = q / torch.sqrt(q.square().sum(-1, keepdim=True) + eps) / size**0.5
    k = k / torch.sqrt(k.square().sum(-1, keepdim=True) + eps)
    return q, k, v.unflatten(1, (-1, spec.sizes["value_size"]))


def _delta_rule(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    """Return o [L, H, V] from q, k [L, H, K], v [L, H, V], decay [L, H, 1 or K] and beta [L, H]."""
    _, heads, value_size = v.shape
    state = torch.zeros(heads, value_size, k.shape[2], dtype=torch.float64)
    outs = []
    for t in range(len(q)):
        key = k[t].unsqueeze(1)
        state = state * decay[t].unsqueeze(1)
        known = (state * key).sum(-1)
        correction = beta[t].unsqueeze(1) * (v[t] - known)
        state = state + correction.unsqueeze(2) * key
        read = (state * q[t].unsqueeze(1)).sum(-1)
        outs.append(read)
    return torch.stack(outs)


FORMULAS: Mapping[str, Formula] = {
    "short_conv": short_conv_formula,
    "mamba1": mamba1_formula,
    "mamba2": mamba2_formula,
    "gated_delta": gated_delta_formula,
    "kda": kda_formula,
    "lightning": lightning_formula,
}
SCALES = {"z_scale": 0.7, "x_scale": 1.3, "b_scale": 0.9, "c_scale": 1.1, "dt_scale": 0.6}
EXAMPLES: Mapping[str, list[StateSpec]] = {
    "short_conv": [short_conv(24, 3), short_conv(7, 4, bias=True), short_conv(16, 2)],
    "mamba1": [
        mamba1(channels=24, state=16, rank=3),
        mamba1(channels=7, state=5, rank=2, kernel=3, norm="plain", norm_eps=1e-3, conv_bias=False),
        mamba1(channels=12, state=8, rank=1, kernel=2, norm="weighted", norm_eps=1e-4),
    ],
    "mamba2": [
        mamba2(heads=4, head_size=8, state=16),
        mamba2(heads=6, head_size=5, state=7, groups=2, kernel=3, norm_groups=2, dt_limits=(0.1, 1.0), conv_bias=False),
        mamba2(heads=3, head_size=4, state=20, groups=3, norm="before_gate", norm_groups=3, norm_eps=1e-3),
        mamba2(heads=2, head_size=16, state=3, kernel=2, norm="none", scales=SCALES),
    ],
    "gated_delta": [
        gated_delta(key_heads=2, value_heads=4, key_size=16, value_size=8),
        gated_delta(key_heads=3, value_heads=3, key_size=5, value_size=7, kernel=3, beta_scale=2, joined_conv=False),
        gated_delta(key_heads=1, value_heads=3, key_size=20, value_size=4, norm_eps=1e-3, projections=FUSED),
    ],
    "kda": [
        kda(heads=2, key_size=16, value_size=16, decay_rank=16, gate_rank=8),
        kda(heads=3, key_size=5, value_size=7, kernel=3, decay_floor=-5.0, norm_eps=1e-3, joined_conv=True),
    ],
    "lightning": [
        lightning(heads=4, head_size=16, slope=1.00001),
        lightning(heads=3, head_size=7, slope=0.4, norm_eps=1e-3),
    ],
}
"""Small layers of even and odd sizes, in every variant."""
