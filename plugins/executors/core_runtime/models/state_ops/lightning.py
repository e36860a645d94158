"""The op `lightning`: linear attention with a fixed decay a head (Lightning Attention-2, Qin et al. 2024, arXiv 2401.04658).

Owns: its meaning, and its spec. Never does: compute. Called by: families with such layers (MiniMax-Text-01, arXiv 2501.08313).

H heads, each with queries, keys and values of D numbers. Inputs of a token, side by side: q [H·D], k [H·D], v [H·D], g [H·D].

    q, k, v = silu(q, k, v)
    S = exp(-slope)·S + v ⊗ k                                              [H, D, D], slope: one number a head, see below
    o = S·q                                                                [H, D], summed over the numbers of k
    out = weight·o / sqrt(mean of o² + `norm_eps`)·sigmoid(g)              one mean over all heads

The slope of head h, counted from 1, is `slope`·2^(-8·h / H).

State: S [H, D, D], for each number of a value those of the key.

sizes:   heads (H), head_size (D).
numbers: norm_eps, slope.
params:  norm.weight [H·D].
"""

from __future__ import annotations

from typing import Final

from core.api.specs import Groups, StateSpec

PARTS: Final = 3
"""Queries, keys and values, which checkpoints have head by head in one matrix."""


def lightning(*, heads: int, head_size: int, slope: float, norm_eps: float = 1e-6) -> StateSpec:
    """Return the spec of a layer with the op."""
    width = heads * head_size
    return StateSpec(
        op="lightning",
        inputs={"qkv_proj": PARTS * width, "output_gate": width},
        output_size=width,
        state_size=width * head_size,
        sizes={"heads": heads, "head_size": head_size},
        numbers={"norm_eps": norm_eps, "slope": slope},
        params={"norm.weight": (width,)},
        orders={"qkv_proj": Groups(heads, (head_size,) * PARTS)},
    )


def slopes(spec: StateSpec) -> list[float]:
    """Return the slope of each head."""
    heads = spec.sizes["heads"]
    return [spec.numbers["slope"] * 2 ** (-8 * (head + 1) / heads) for head in range(heads)]
