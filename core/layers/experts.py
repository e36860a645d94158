"""Mixture of experts: the router's choice and the layer of experts, in plain torch.

Owns: the meaning of the operations `route` and `experts`; native kernels are tested against these. Never does: drop a token
for capacity. Called by: `ReferenceKernels`, hence models where no provider's kernel supports them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from core.api.specs import RoutingSpec
from core.layers.linear import Linear

COMBINE_RANGES = 8
"""Ranges of experts with sums of their own, at most."""


def route(logits: Tensor, routing: RoutingSpec, bias: Tensor | None, ids: Tensor, weights: Tensor) -> None:
    """ids int64 [T, k], weights float32 [T, k] from logits [T, E]; see `RoutingSpec`. The lowest id wins a tie.

    Without a bias and paired groups the choice compares logits, else scores (plus bias); a not-a-number is least of all.
    """
    wide = logits.float()
    scores = torch.sigmoid(wide) if routing.scores == "sigmoid" else torch.softmax(wide, -1)
    by_scores = bias is not None or routing.group_rank == "best_two"
    choice = (scores if bias is None else scores + bias) if by_scores else wide
    least = torch.finfo(torch.float32).min
    choice = choice.nan_to_num(nan=least, neginf=least, posinf=-least)
    if routing.groups > 1:
        choice = choice.masked_fill(~_kept_groups(choice, routing), -torch.inf)
    ids.copy_(torch.sort(choice, dim=-1, descending=True, stable=True).indices[:, : routing.top_k])
    chosen = scores.gather(-1, ids)
    if routing.renormalize:
        chosen = chosen / chosen.sum(-1, keepdim=True)
    weights.copy_(chosen * routing.factor)


def _kept_groups(choice: Tensor, routing: RoutingSpec) -> Tensor:
    """Which experts belong to the best groups, bool [T, E]."""
    grouped = choice.unflatten(-1, (routing.groups, -1))
    count = min(2 if routing.group_rank == "best_two" else 1, grouped.shape[-1])
    rank = grouped.topk(count, -1).values.sum(-1)
    best = torch.sort(rank, dim=-1, descending=True, stable=True).indices[:, : routing.top_groups]
    kept = torch.zeros_like(rank, dtype=torch.bool).scatter(-1, best, True)
    return kept.repeat_interleave(grouped.shape[-1], -1)


def combine(parts: Tensor, ids: Tensor, weights: Tensor, num_experts: int) -> Tensor:
    """float32 [T, H]: the weighted sum of each token's experts, parts float32 [T, k, H].

    A token's experts are added in order of their ids: each of up to eight equal ranges of ids has a sum of its own, and
    these are added as a binary tree. Whoever has half of the experts thus has a whole subtree, and the sum of two halves
    has the bits of the whole.
    """
    ranges = 1
    while 2 * ranges <= COMBINE_RANGES and num_experts % (2 * ranges) == 0:
        ranges *= 2
    tokens, top_k = ids.shape
    sums = torch.zeros(tokens, ranges, parts.shape[2], dtype=torch.float32, device=parts.device)
    every = torch.arange(tokens, device=ids.device)
    order = ids.argsort(dim=1)
    for column in range(top_k):
        chosen = order[:, column]
        where = ids[every, chosen] // (num_experts // ranges)
        sums[every, where] += weights[every, chosen, None] * parts[every, chosen]
    while sums.shape[1] > 1:
        sums = sums[:, ::2] + sums[:, 1::2]
    return sums[:, 0]


class ReferenceExperts:
    """The experts of one layer: gate_up[e] maps H to 2 * I, down[e] maps I to H. nbytes: of all their weights.

    gated: the operation between the two (see `Kernels.gated`).
    """

    def __init__(
        self,
        gate_up: Sequence[Linear],
        down: Sequence[Linear],
        activation: str,
        gated: Callable[[Tensor, str, Tensor], None],
    ) -> None:
        if not 0 < len(gate_up) == len(down):
            raise ValueError(
                f"{len(gate_up)} gate-and-up layers and {len(down)} down layers, expected one each an expert"
            )
        self.gate_up, self.down, self.activation = tuple(gate_up), tuple(down), activation
        self.gated = gated
        self.nbytes = sum(linear.nbytes for linear in (*gate_up, *down))

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
        """out[T, H] = the sum over j of weights[t, j] * expert ids[t, j] of x[T, H], or += with `accumulate`.

        A token sums its experts in float32, in the order that `combine` describes.
        """
        tokens, top_k = ids.shape
        parts = torch.zeros(tokens * top_k, x.shape[1], dtype=torch.float32, device=x.device)
        flat = ids.flatten()
        for expert in flat.unique().tolist():
            pairs = (flat == expert).nonzero().squeeze(1)
            parts[pairs] = self._expert(expert, x[pairs // top_k]).float()
        total = combine(parts.view(tokens, top_k, -1), ids, weights, len(self.down))
        if accumulate:
            out += total.to(out.dtype)
        else:
            out.copy_(total)

    def _expert(self, expert: int, x: Tensor) -> Tensor:
        rows, gate_up, down = x.shape[0], self.gate_up[expert], self.down[expert]
        both = torch.empty(rows, gate_up.out_features, dtype=x.dtype, device=x.device)
        gate_up(x, both)
        between = torch.empty(rows, both.shape[1] // 2, dtype=x.dtype, device=x.device)
        self.gated(both, self.activation, between)
        out = torch.empty(rows, down.out_features, dtype=x.dtype, device=x.device)
        down(between, out)
        return out
