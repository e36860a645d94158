"""The choice of experts on Triton kernels is the reference's."""

from types import SimpleNamespace

import pytest
import torch

from core_kernels.triton.kernels import TritonKernels
from core_kit.checks import experts as kit
from core_kit.oracles.numbers import generator
from core_runtime.layers.experts import route
from core_runtime.specs.routing_spec import RoutingSpec

KERNELS = TritonKernels()
SUBJECT = SimpleNamespace(device="cpu", loaded=KERNELS)


@pytest.mark.gpu_interpreter
def test_the_kit_is_satisfied():
    """Every kind of scores, groups, a bias, ties; odd values give valid experts."""
    kit.route_equals_reference(SUBJECT)
    kit.route_survives_odd_values(SUBJECT)


@pytest.mark.parametrize(
    ("experts", "routing", "biased"),
    [
        (160, RoutingSpec(6, groups=8, top_groups=3, factor=16.0, renormalize=False), False),
        (20, RoutingSpec(5, "sigmoid", groups=5, top_groups=2, group_rank="best_two", factor=2.5), True),
        (6, RoutingSpec(4, "sigmoid", groups=6, top_groups=2, group_rank="best_two", epsilon=1e-3), False),
    ],
    ids=["DeepSeek V2", "no power of two", "groups of one, more chosen than there are"],
)
def test_numbers_of_experts_and_groups(experts, routing, biased):
    random = generator("experts")
    logits = torch.randn(5, experts, generator=random)
    bias = torch.randn(experts, generator=random) if biased else None
    got = torch.empty(5, routing.top_k, dtype=torch.int64), torch.empty(5, routing.top_k)
    expected = torch.empty(5, routing.top_k, dtype=torch.int64), torch.empty(5, routing.top_k)
    KERNELS.route(logits, routing, bias, *got)
    route(logits, routing, bias, *expected)
    assert got[0].tolist() == expected[0].tolist()
    torch.testing.assert_close(got[1], expected[1], rtol=1e-5, atol=1e-6)


def test_a_token_is_routed_alone_as_among_others():
    routing = RoutingSpec(4, "sigmoid")
    logits = torch.randn(9, 24, generator=generator("alone"))
    ids, weights = torch.empty(9, 4, dtype=torch.int64), torch.empty(9, 4)
    KERNELS.route(logits, routing, None, ids, weights)
    own_ids, own_weights = torch.empty(1, 4, dtype=torch.int64), torch.empty(1, 4)
    KERNELS.route(logits[5:6], routing, None, own_ids, own_weights)
    assert torch.equal(own_ids[0], ids[5]) and torch.equal(own_weights[0], weights[5])
