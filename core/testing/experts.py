"""Checks of a provider's routing and layers of experts against the reference.

Owns: those checks. Never does: define the operations; `core.layers.experts` does. Called by: `core.testing.kernels`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from core.api.specs import Activation, RoutingSpec
from core.layers.experts import ReferenceExperts, route
from core.layers.kernels import weight_format
from core.layers.linear import Linear
from core.layers.reference import ReferenceKernels
from core.testing.case import Failure, Skipped, Subject
from core.testing.numbers import close, generator
from core.testing.sampling import optional_kernel
from core.testing.weights import activations, linear_query, random_weights
from core.weights.formats import CanonicalWeight

EXPERTS, TOKENS, HIDDEN = 12, 33, 64
ROUTINGS = {
    "softmax": RoutingSpec(3),
    "one expert": RoutingSpec(1),
    "all experts": RoutingSpec(EXPERTS),
    "softmax, not renormalized": RoutingSpec(4, renormalize=False),
    "sigmoid with a factor": RoutingSpec(4, "sigmoid", factor=2.5),
    "groups by their best": RoutingSpec(3, groups=4, top_groups=2),
    "groups by their two best": RoutingSpec(3, "sigmoid", groups=4, top_groups=2, group_rank="best_two"),
}


def route_equals_reference(subject: Subject) -> None:
    """route chooses the reference's experts with its weights: every kind of scores, groups, a bias, ties."""
    choose = optional_kernel(subject, "route")
    random = generator("route")
    logits = torch.randn(TOKENS, EXPERTS + 4, generator=random)[:, :EXPERTS] * 3
    logits[0] = 0.5  # all equal: the lowest ids
    bias = torch.randn(EXPERTS, generator=random)
    for what, routing in ROUTINGS.items():
        for extra in (None, bias):
            label = f"route: {what}{', with a bias' if extra is not None else ''}"
            ids, weights = _empty(routing.top_k)
            choose(logits, routing, extra, ids, weights)
            expected, expected_weights = _empty(routing.top_k)
            route(logits, routing, extra, expected, expected_weights)
            if not torch.equal(ids, expected):
                row = int((ids != expected).any(-1).nonzero()[0])
                raise Failure(f"{label}: token {row} goes to {ids[row].tolist()}, expected {expected[row].tolist()}")
            close(weights, expected_weights, 1e-5, f"{label}: weights")


def route_survives_odd_values(subject: Subject) -> None:
    """route gives valid and different experts whatever the logits are, NaN and infinities included."""
    choose = optional_kernel(subject, "route")
    logits = torch.zeros(TOKENS, EXPERTS)
    logits[0], logits[1, 5], logits[2, 3] = torch.nan, torch.nan, torch.inf
    logits[3], logits[4, :6] = -torch.inf, -torch.inf
    for what, routing in ROUTINGS.items():
        ids, weights = _empty(routing.top_k)
        choose(logits, routing, None, ids, weights)
        for row in range(5):
            chosen = ids[row].tolist()
            if len(set(chosen)) < len(chosen) or not all(0 <= expert < EXPERTS for expert in chosen):
                raise Failure(f"route: {what}: logits {logits[row].tolist()} give experts {chosen}")


def experts_equal_reference(subject: Subject) -> None:
    """experts equals the reference for every format it can run together: any choice, no token dropped, accumulation."""
    build = optional_kernel(subject, "experts")
    tried = 0
    for pair in zip(random_weights((2 * HIDDEN, HIDDEN)), random_weights((HIDDEN, HIDDEN)), strict=True):
        for activation in activations(pair[0]):
            if any(subject.loaded.supports(linear_query(subject.device, weight, activation)) for weight in pair):
                continue
            sides = [[_variant(weight, expert) for expert in range(EXPERTS)] for weight in pair]
            for gate in ("silu", "gelu_tanh"):
                own = [[subject.loaded.linear(w, activation=activation) for w in side] for side in sides]
                layer = build(*own, gate)
                if layer is None:
                    continue
                tried += 1
                least = sum(kernel.nbytes for side in own for kernel in side)
                label = f"experts of {weight_format(pair[0])}, activation {activation}, {gate}"
                if layer.nbytes < least:
                    raise Failure(f"{label}: tells {layer.nbytes} bytes, its linear kernels hold {least}")
                _compare(layer, _reference(sides, activation, gate), activation, label)
    if not tried:
        raise Skipped("it runs no format known here together")


def _compare(layer: ReferenceExperts, reference: ReferenceExperts, activation: Activation, label: str) -> None:
    random = generator(label)
    tolerance = 2e-5 if activation == "none" else 2e-2
    x = torch.randn(TOKENS, HIDDEN + 8, generator=random)[:, :HIDDEN]
    choices = {
        "any experts": torch.rand(TOKENS, EXPERTS, generator=random).argsort(-1)[:, :3].contiguous(),
        "one expert for all tokens": torch.full((TOKENS, 1), EXPERTS - 1),
    }
    for what, ids in choices.items():
        weights = torch.rand(ids.shape, generator=random)
        for rows in (1, TOKENS):
            for accumulate in (False, True):
                got = torch.full((rows, HIDDEN + 4), 0.5 if accumulate else torch.nan)[:, :HIDDEN]
                expected = got.clone()
                layer(x[:rows], ids[:rows], weights[:rows], got, accumulate=accumulate)
                reference(x[:rows], ids[:rows], weights[:rows], expected, accumulate=accumulate)
                how = ", accumulated" if accumulate else ""
                close(got, expected, tolerance, f"{label}, {what}, {rows} tokens{how}")


def _variant(weight: CanonicalWeight, expert: int) -> CanonicalWeight:
    """The same rows in another order for each expert."""
    return weight.rows(torch.arange(weight.shape[0]).roll(7 * expert))


def _reference(sides: Sequence[Sequence[CanonicalWeight]], activation: Activation, gate: str) -> ReferenceExperts:
    kernels = ReferenceKernels()
    layers = [[Linear([kernels.linear(weight, activation=activation)]) for weight in side] for side in sides]
    return ReferenceExperts(layers[0], layers[1], gate, kernels.gated)


def _empty(top_k: int) -> tuple[Tensor, Tensor]:
    return torch.full((TOKENS, top_k), -1), torch.full((TOKENS, top_k), torch.nan)
