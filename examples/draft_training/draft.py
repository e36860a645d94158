"""An EAGLE-3 draft (arXiv 2503.01840) in plain torch, its tensors under their published names.

Owns: its arithmetic in training. Never does: read or write files. Called by: training and acceptance.

At the position of token i the draft sees that token's embedding and what the target thought at token i - 1 (zeros at the
first one), and predicts token i + 1. When it goes on by itself, its own thought at token i - 1 takes the target's place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class DraftShape:
    """Sizes of a draft; those of hidden states and heads are the target's.

    intermediate: of the MLP.
    tokens: that the head knows.
    target_tokens: that the target knows.
    eps: of norms.
    theta: of the rotary embedding.
    """

    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    tokens: int
    target_tokens: int
    eps: float
    theta: float


Pair = tuple[Tensor, Tensor]


class Attention(nn.Module):
    def __init__(self, shape: DraftShape) -> None:
        super().__init__()
        self.shape = shape
        wide = 2 * shape.hidden
        self.q_proj = nn.Linear(wide, shape.heads * shape.head_size, bias=False)
        self.k_proj = nn.Linear(wide, shape.kv_heads * shape.head_size, bias=False)
        self.v_proj = nn.Linear(wide, shape.kv_heads * shape.head_size, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_size, shape.hidden, bias=False)

    def forward(self, pair: Tensor, past: list[Pair]) -> Tensor:
        """pair: [B, T, 2H]. past: keys and values of the passes before, to which those of this one are added."""
        q = rotated(self._by_head(self.q_proj(pair)), self.shape.theta)
        k = rotated(self._by_head(self.k_proj(pair)), self.shape.theta)
        v = self._by_head(self.v_proj(pair))
        copies = self.shape.heads // self.shape.kv_heads
        past.append((k.repeat_interleave(copies, dim=1), v.repeat_interleave(copies, dim=1)))
        mixed = attention(q, past)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))

    def _by_head(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (-1, self.shape.head_size)).transpose(1, 2)


class MLP(nn.Module):
    def __init__(self, shape: DraftShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class MidLayer(nn.Module):
    def __init__(self, shape: DraftShape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden, shape.eps)
        self.hidden_norm = nn.RMSNorm(shape.hidden, shape.eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden, shape.eps)
        self.mlp = MLP(shape)

    def forward(self, embedded: Tensor, hidden: Tensor, past: list[Pair]) -> Tensor:
        pair = torch.cat((self.input_layernorm(embedded), self.hidden_norm(hidden)), dim=2)
        hidden = hidden + self.self_attn(pair, past)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Draft(nn.Module):
    """kept: rising ids of the target's tokens that the head knows, int64 [shape.tokens]."""

    def __init__(self, shape: DraftShape, kept: Tensor) -> None:
        super().__init__()
        self.shape = shape
        self.midlayer = MidLayer(shape)
        self.fc = nn.Linear(3 * shape.hidden, shape.hidden, bias=False)
        self.norm = nn.RMSNorm(shape.hidden, shape.eps)
        self.lm_head = nn.Linear(shape.hidden, shape.tokens, bias=False)
        is_kept = torch.zeros(shape.target_tokens, dtype=torch.bool)
        is_kept[kept] = True
        self.register_buffer("d2t", kept - torch.arange(shape.tokens))
        self.register_buffer("t2d", is_kept)

    @property
    def kept(self) -> Tensor:
        """The target's id of each token that the head knows."""
        return self.d2t + torch.arange(self.shape.tokens)

    def passes(self, embedded: Tensor, taps: Tensor, count: int) -> Iterator[Tensor]:
        """What the draft thinks, [B, T, H], `count` times.

        embedded: [B, T, H]. taps: [B, T, 3H], of the target at the same tokens.
        In the pass of number s, what stands at token i is thought with the target's help up to token i - s - 1, and
        alone from there on. The first s tokens of it mean nothing.
        """
        past: list[Pair] = []
        hidden = self.fc(taps)
        for _ in range(count):
            hidden = self.midlayer(embedded, shifted(hidden, 1, dim=1), past)
            yield hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., tokens] of what the draft thinks, [..., H]."""
        return self.lm_head(self.norm(hidden))


def shifted(x: Tensor, count: int, dim: int) -> Tensor:
    """The same with `count` zeros in front and as many of its last entries gone."""
    if count == 0:
        return x
    zeros = torch.zeros_like(x.narrow(dim, 0, count))
    return torch.cat((zeros, x.narrow(dim, 0, x.shape[dim] - count)), dim=dim)


def rotated(x: Tensor, theta: float) -> Tensor:
    """Rotary embedding of [B, heads, T, size], the halves of a head paired."""
    half = x.shape[3] // 2
    frequencies = theta ** (-torch.arange(half, dtype=torch.float32) / half)
    angles = torch.outer(torch.arange(x.shape[2], dtype=torch.float32), frequencies)
    cos = angles.cos().to(x.dtype)
    sin = angles.sin().to(x.dtype)
    left, right = x.split(half, dim=3)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=3)


def attention(q: Tensor, past: list[Pair]) -> Tensor:
    """Each token's keys: of the last pass at itself, of the pass before at the token before, and so on; behind that, all of
    the first pass."""
    own = len(past) - 1
    first_k, first_v = past[0]
    if own == 0:
        return F.scaled_dot_product_attention(q, first_k, first_v, is_causal=True)
    scale = q.shape[3] ** -0.5
    tokens = q.shape[2]
    seen = torch.ones(tokens, tokens, dtype=torch.bool).tril(-own)
    scores = (q @ first_k.transpose(2, 3) * scale).masked_fill(~seen, -torch.inf)
    recent = [
        (shifted(k, own - number, 2), shifted(v, own - number, 2)) for number, (k, v) in enumerate(past) if number
    ]
    recent_scores = [(q * k).sum(3, keepdim=True) * scale for k, _ in recent]
    weights = torch.cat((scores, *recent_scores), dim=3).softmax(dim=3)
    mixed = weights[..., :tokens] @ first_v
    for number, (_, v) in enumerate(recent):
        mixed = mixed + weights[..., tokens + number, None] * v
    return mixed
