"""Checks of a provider's routing and layers of experts against the reference.

Owns: the checks. Never does: define the operations; `core_runtime.layers.experts` does. Called by: `core_kit.checks.kernels`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from core.api.specs import Activation
from core_kit.case import Failure, Skipped, Subject
from core_kit.checks.sampling import optional_kernel
from core_kit.fixtures.weights import activations, linear_query, random_weights
from core_kit.oracles.numbers import close, generator
from core_kit.oracles.operations import served_activations
from core_runtime.layers.experts import ReferenceExperts, route
from core_runtime.layers.features import features_of, routing_feature
from core_runtime.layers.kernels import weight_format
from core_runtime.layers.linear import Linear
from core_runtime.layers.reference import ReferenceKernels
from core_runtime.specs.routing_spec import RoutingSpec
from core_runtime.weights.formats import CanonicalWeight

EXPERTS = 12
TOKENS = 33
HIDDEN = 64
ROUTINGS = {
    "softmax": RoutingSpec(3),
    "one expert": RoutingSpec(1),
    "all experts": RoutingSpec(EXPERTS),
    "softmax, not renormalized": RoutingSpec(4, renormalize=False),
    "sigmoid with a factor": RoutingSpec(4, "sigmoid", factor=2.5),
    "groups by their best": RoutingSpec(3, groups=4, top_groups=2),
    "sigmoid with an epsilon": RoutingSpec(4, "sigmoid", epsilon=1e-2),
    "sparse mixer": RoutingSpec(2, "sparse_mixer", renormalize=False, jitter=0.1),
    "groups by their two best": RoutingSpec(3, "sigmoid", groups=4, top_groups=2, group_rank="best_two"),
}


def route_equals_reference(subject: Subject) -> None:
    """route chooses the reference's experts with its weights: every kind of scores, groups, a bias, ties."""
    choose = optional_kernel(subject, "route")
    random = generator("route")
    logits = torch.randn(TOKENS, EXPERTS + 4, generator=random)[:, :EXPERTS] * 3
    logits[0] = 0.5  # all equal: the lowest ids
    bias = torch.randn(EXPERTS, generator=random)
    for what, routing in _served_routings(subject).items():
        for label, extra in ((f"route: {what}", None), (f"route: {what}, with a bias", bias)):
            if routing.problem(extra is not None):
                continue
            ids, weights = _empty(routing.top_k)
            choose(logits, routing, extra, ids, weights)
            expected, expected_weights = _empty(routing.top_k)
            route(logits, routing, extra, expected, expected_weights)
            differs = (ids != expected).any(-1)
            if differs.any():
                row = int(differs.nonzero()[0])
                got = ids[row].tolist()
                wanted = expected[row].tolist()
                raise Failure(f"{label}: token {row} goes to {got}, expected {wanted}")
            close(weights, expected_weights, 1e-5, f"{label}: weights")


def route_survives_odd_values(subject: Subject) -> None:
    """route gives valid and different experts whatever the logits are, NaN and infinities included."""
    choose = optional_kernel(subject, "route")
    logits = torch.zeros(TOKENS, EXPERTS)
    logits[0] = torch.nan
    logits[1, 5] = torch.nan
    logits[2, 3] = torch.inf
    logits[3] = -torch.inf
    logits[4, :6] = -torch.inf
    for what, routing in _served_routings(subject).items():
        ids, weights = _empty(routing.top_k)
        choose(logits, routing, None, ids, weights)
        for row in range(5):
            chosen = ids[row].tolist()
            different = len(set(chosen)) == len(chosen)
            valid = all(0 <= expert < EXPERTS for expert in chosen)
            if not (different and valid):
                raise Failure(f"route: {what}: logits {logits[row].tolist()} give experts {chosen}")


def experts_equal_reference(subject: Subject) -> None:
    """experts equals the reference for every format it can run together: any choice, no token dropped, accumulation."""
    build = optional_kernel(subject, "experts")
    tried = False
    for experts in _experts_of_every_format(subject):
        # One format suffices for the other gates: the gate applies to the products, whatever the weights were.
        gates = ("silu",) if tried else served_activations(subject.loaded)
        for gate in gates:
            tried |= _runs_as_reference(subject, build, experts, gate)
    if not tried:
        raise Skipped("it runs no format known here together")


@dataclass(frozen=True, slots=True)
class _Experts:
    """The experts of one layer.

    gate_up: [2 * HIDDEN, HIDDEN] of each.
    down: [HIDDEN, HIDDEN] of each, in the same format.
    activation: precision to which inputs are rounded.
    """

    gate_up: list[CanonicalWeight]
    down: list[CanonicalWeight]
    activation: Activation


def _experts_of_every_format(subject: Subject) -> Iterator[_Experts]:
    """Yield experts in every format whose single matrices the provider serves."""
    all_gate_up = random_weights((2 * HIDDEN, HIDDEN))
    all_down = random_weights((HIDDEN, HIDDEN))
    for gate_up, down in zip(all_gate_up, all_down, strict=True):
        for activation in activations(gate_up):
            if _refused(subject, gate_up, activation) or _refused(subject, down, activation):
                continue
            yield _Experts(_variants(gate_up), _variants(down), activation)


def _refused(subject: Subject, weight: CanonicalWeight, activation: Activation) -> bool:
    query = linear_query(subject.device, weight, activation)
    return bool(subject.loaded.supports(query))


def _runs_as_reference(subject: Subject, build: Callable[..., Any], experts: _Experts, gate: str) -> bool:
    """Whether the provider runs these experts together. Raises Failure when it does with results that differ from the
    reference.
    """
    activation = experts.activation
    gate_up = [subject.loaded.linear(weight, activation=activation) for weight in experts.gate_up]
    down = [subject.loaded.linear(weight, activation=activation) for weight in experts.down]
    layer = build(gate_up, down, gate)
    if layer is None:
        return False
    label = f"experts of {weight_format(experts.gate_up[0])}, activation {activation}, {gate}"
    least = sum(kernel.nbytes for kernel in gate_up + down)
    if layer.nbytes < least:
        raise Failure(f"{label}: tells {layer.nbytes} bytes, its linear kernels hold {least}")
    _compare(layer, _reference(experts, gate), activation, label)
    return True


def _compare(layer: ReferenceExperts, reference: ReferenceExperts, activation: Activation, label: str) -> None:
    random = generator(label)
    tolerance = 2e-5 if activation == "none" else 2e-2
    # Inputs and outputs are slices of wider tensors, so that kernels cannot confuse strides with sizes.
    x = torch.randn(TOKENS, HIDDEN + 8, generator=random)[:, :HIDDEN]
    shuffled = torch.rand(TOKENS, EXPERTS, generator=random).argsort(-1)
    choices = {
        "any experts": shuffled[:, :3].contiguous(),
        "one expert for all tokens": torch.full((TOKENS, 1), EXPERTS - 1),
    }
    for what, ids in choices.items():
        weights = torch.rand(ids.shape, generator=random)
        for rows, accumulate in ((1, False), (TOKENS, True)):
            before = 0.5 if accumulate else torch.nan
            got = torch.full((rows, HIDDEN + 4), before)[:, :HIDDEN]
            expected = got.clone()
            inputs = (x[:rows], ids[:rows], weights[:rows])
            layer(*inputs, got, accumulate=accumulate)
            reference(*inputs, expected, accumulate=accumulate)
            how = ", accumulated" if accumulate else ""
            close(got, expected, tolerance, f"{label}, {what}, {rows} tokens{how}")


def _variants(weight: CanonicalWeight) -> list[CanonicalWeight]:
    """Return the weight with its rows in another order for each expert."""
    rows = torch.arange(weight.shape[0])
    return [weight.rows(rows.roll(7 * expert)) for expert in range(EXPERTS)]


def _reference(experts: _Experts, gate: str) -> ReferenceExperts:
    kernels = ReferenceKernels()

    def linear(weight: CanonicalWeight) -> Linear:
        return Linear([kernels.linear(weight, activation=experts.activation)])

    gate_up = [linear(weight) for weight in experts.gate_up]
    down = [linear(weight) for weight in experts.down]
    return ReferenceExperts(gate_up, down, gate, kernels.gated)


def _served_routings(subject: Subject) -> dict[str, RoutingSpec]:
    """Return the routings that need no feature, or one that the provider declares."""
    features = features_of(subject.loaded)
    served = {}
    for what, routing in ROUTINGS.items():
        feature = routing_feature(routing)
        if feature is None or feature in features:
            served[what] = routing
    return served


def _empty(top_k: int) -> tuple[Tensor, Tensor]:
    """Return expert ids and weights [TOKENS, top_k] with values that no kernel writes."""
    ids = torch.full((TOKENS, top_k), -1)
    weights = torch.full((TOKENS, top_k), torch.nan)
    return ids, weights
