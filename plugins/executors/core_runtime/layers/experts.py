"""Mixture of experts in plain torch: the router's choice and the layer of experts.

Owns: the meaning of the operations `route` and `experts`; native kernels are tested against these. Never does: drop a token
for capacity. Called by: `ReferenceKernels`, and so by models where no provider's kernel supports these operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from core_runtime.contracts import LinearKernel
from core_runtime.layers.linear import Linear
from core_runtime.specs.routing_spec import RoutingSpec

COMBINE_RANGES = 8
"""Maximum ranges of experts with partial sums of their own."""


def route(logits: Tensor, routing: RoutingSpec, bias: Tensor | None, ids: Tensor, weights: Tensor) -> None:
    """Choose the experts of each token; see `RoutingSpec`. The lowest id wins a tie.

    logits: [T, E].
    bias: float32 [E], added for the choice only, or None.
    ids: int64 [T, k], output.
    weights: float32 [T, k], output.

    Without a bias and paired groups the choice compares logits, otherwise scores (plus bias). NaN counts as the
    smallest value.
    """
    problem = routing.problem(bias is not None)
    if problem is not None:
        raise ValueError(problem)
    wide = logits.float()
    if routing.scores == "sparse_mixer":
        return _mix_sparsely(wide, routing, ids, weights)
    scores = torch.sigmoid(wide) if routing.scores == "sigmoid" else torch.softmax(wide, -1)
    if bias is not None:
        choice = scores + bias
    elif routing.group_rank == "best_two":
        choice = scores
    else:
        choice = wide  # same order as the scores, but rounding can make different scores equal
    least = torch.finfo(torch.float32).min
    choice = choice.nan_to_num(nan=least, neginf=least, posinf=-least)
    if routing.groups > 1:
        kept = _kept_groups(choice, routing)
        choice = choice.masked_fill(~kept, -torch.inf)
    order = _falling(choice)
    ids.copy_(order[:, : routing.top_k])
    chosen = scores.gather(-1, ids)
    if routing.renormalize:
        total = chosen.sum(-1, keepdim=True)
        chosen = chosen / (total + routing.epsilon)
    weights.copy_(chosen * routing.factor)


def _mix_sparsely(logits: Tensor, routing: RoutingSpec, ids: Tensor, weights: Tensor) -> None:
    """Choose experts by the scores `sparse_mixer`, float32 [T, E]; see `RoutingSpec`."""
    least = torch.finfo(torch.float32).min
    left = logits.nan_to_num(nan=least, neginf=least, posinf=-least)
    for column in range(routing.top_k):
        best = _falling(left)[:, :1]
        top = logits.gather(-1, best)
        size = logits.abs().maximum(top)
        far = (top - logits) / size > 2 * routing.jitter
        excluded = far | (left == -torch.inf)
        near = logits.masked_fill(excluded, -torch.inf)
        shares = torch.softmax(near, -1)
        ids[:, column : column + 1] = best
        weights[:, column : column + 1] = shares.gather(-1, best) * routing.factor
        left = left.scatter(-1, best, -torch.inf)


def _kept_groups(choice: Tensor, routing: RoutingSpec) -> Tensor:
    """Return which experts belong to the best groups, bool [T, E]."""
    grouped = choice.unflatten(-1, (routing.groups, -1))
    size = grouped.shape[-1]
    counting = 2 if routing.group_rank == "best_two" else 1
    best_scores = grouped.topk(min(counting, size), -1).values
    rank = best_scores.sum(-1)
    best = _falling(rank)[:, : routing.top_groups]
    kept = torch.zeros_like(rank, dtype=torch.bool)
    kept = kept.scatter(-1, best, True)
    return kept.repeat_interleave(size, -1)


def _falling(values: Tensor) -> Tensor:
    """Return the places of each row's values, the largest first, the lower place first on ties: int64 [T, n]."""
    return torch.sort(values, dim=-1, descending=True, stable=True).indices


def combine(parts: Tensor, ids: Tensor, weights: Tensor, num_experts: int, max_ranges: int = COMBINE_RANGES) -> Tensor:
    """Return the weighted sum of each token's experts, float32 [T, H], for parts float32 [T, k, H].

    A token's experts are added in order of their ids: each of up to `max_ranges` equal ranges of ids has a partial sum,
    and these are added as a binary tree. So a rank with half of the experts, and half of the ranges, computes a whole
    subtree, and the sum of two halves has the same bits as the whole.
    """
    ranges = 1
    while 2 * ranges <= max_ranges and num_experts % (2 * ranges) == 0:
        ranges *= 2
    range_size = num_experts // ranges
    tokens, top_k = ids.shape
    hidden = parts.shape[2]
    sums = torch.zeros(tokens, ranges, hidden, dtype=torch.float32, device=parts.device)
    every = torch.arange(tokens, device=ids.device)
    order = ids.argsort(dim=1)
    for column in range(top_k):
        chosen = order[:, column]
        where = ids[every, chosen] // range_size
        weighted = weights[every, chosen, None] * parts[every, chosen]
        sums[every, where] += weighted
    while sums.shape[1] > 1:
        sums = sums[:, ::2] + sums[:, 1::2]
    return sums[:, 0]


class ReferenceExperts:
    """The experts of one layer, run one after the other.

    gate_up: gate_up[e] maps H to 2 * I, or to I for experts without a gate.
    down: down[e] maps I to H.
    activation: activation of the gate, or of the first product.
    between: operation between the two products: `Kernels.gated`, or `activate` for experts without a gate.
    weight_inputs: whether a choice's weight multiplies the expert's input instead of its output.
    max_ranges: see `combine`.
    nbytes: bytes of all weights.
    """

    def __init__(
        self,
        gate_up: Sequence[Linear],
        down: Sequence[Linear],
        activation: str,
        between: Callable[[Tensor, str, Tensor], None],
        *,
        weight_inputs: bool = False,
        max_ranges: int = COMBINE_RANGES,
    ) -> None:
        if not 0 < len(gate_up) == len(down):
            raise ValueError(
                f"{len(gate_up)} gate-and-up layers and {len(down)} down layers, expected one each an expert"
            )
        self.gate_up = list(gate_up)
        self.down = list(down)
        self.activation = activation
        self.between = between
        self.weight_inputs = weight_inputs
        self.max_ranges = max_ranges
        self.nbytes = sum(linear.nbytes for linear in (*gate_up, *down))

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
        """out[T, H] = the sum over j of weights[t, j] * expert ids[t, j] of x[T, H], or += with `accumulate`.

        With `weight_inputs`: of expert ids[t, j] of weights[t, j] * x.

        A token sums its experts in float32, in the order that `combine` describes.
        """
        self._combine(self._outputs(x, ids, weights), ids, weights, len(self.down), self.max_ranges, out, accumulate)

    def place(self, ids: Tensor, table: Tensor, per_rank: int, rank: int, loads: Tensor, slots: Tensor) -> None:
        """Find the rank's own slot of each choice; see `HoldsSomeExperts`."""
        given = [0] * (int(table[:, 1:].max()) // per_rank + 1)
        rows = table.tolist()
        chosen = []
        for expert in ids.flatten().tolist():
            copies = rows[expert][1 : 1 + rows[expert][0]]
            slot = min(copies, key=lambda each: given[each // per_rank])
            given[slot // per_rank] += 1
            chosen.append(slot - rank * per_rank if slot // per_rank == rank else -1)
        slots.copy_(torch.tensor(chosen, dtype=torch.int64).view(slots.shape))
        loads += torch.bincount(ids.flatten(), minlength=len(loads))

    def apart(self, x: Tensor, slots: Tensor, weights: Tensor, out: Tensor) -> None:
        """Write the output of each choice to out[T, k * H]; see `HoldsSomeExperts`."""
        out.copy_(self._outputs(x, slots, weights).flatten(1))

    def combine(
        self, outputs: Tensor, ids: Tensor, weights: Tensor, count: int, out: Tensor, *, accumulate: bool = False
    ) -> None:
        """Add up the outputs of all ranks; see `HoldsSomeExperts`."""
        parts = outputs.unflatten(1, (ids.shape[1], -1))
        self._combine(parts, ids, weights, count, COMBINE_RANGES, out, accumulate)

    def fits(self, gate_up: LinearKernel, down: LinearKernel) -> bool:
        """Whether an expert can be computed here: any can."""
        return True

    def replace(self, slot: int, gate_up: LinearKernel, down: LinearKernel) -> list[Tensor]:
        """Put another expert in a slot; nothing is known about the memory of the former one."""
        self.gate_up[slot] = Linear([gate_up])
        self.down[slot] = Linear([down])
        return []

    def _outputs(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """Return the output of each choice, float32 [T, k, H]; zeros for an id of -1."""
        tokens, top_k = ids.shape
        hidden = x.shape[1]
        pairs = ids.flatten()  # (token, choice) in order
        parts = torch.zeros(len(pairs), hidden, dtype=torch.float32, device=x.device)
        for expert in pairs[pairs >= 0].unique().tolist():
            places = (pairs == expert).nonzero().squeeze(1)
            inputs = x[places // top_k]
            if self.weight_inputs:
                inputs = inputs * weights.flatten()[places, None]
            parts[places] = self._expert(expert, inputs, places // top_k).float()
        return parts.view(tokens, top_k, hidden)

    def _combine(
        self, parts: Tensor, ids: Tensor, weights: Tensor, count: int, max_ranges: int, out: Tensor, accumulate: bool
    ) -> None:
        """Compute out[T, H] (+)= the weighted sum of parts [T, k, H]."""
        if self.weight_inputs:
            weights = torch.ones_like(weights)
        # An absent choice adds 0 to the first range.
        total = combine(parts, ids.clamp(min=0), weights.masked_fill(ids < 0, 0.0), count, max_ranges)
        if accumulate:
            out += total.to(out.dtype)
        else:
            out.copy_(total)

    def _expert(self, expert: int, x: Tensor, tokens: Tensor) -> Tensor:
        """Compute one expert for x [n, H], which belong to `tokens` (int64 [n]). Returns [n, H]."""
        rows = x.shape[0]
        gate_up = self.gate_up[expert]
        down = self.down[expert]
        both = x.new_empty(rows, gate_up.out_features)
        gate_up(x, both)
        inner = x.new_empty(rows, down.in_features)
        self.between(both, self.activation, inner)
        out = x.new_empty(rows, down.out_features)
        down(inner, out)
        return out
