"""Kinds of routers and experts beyond the gated ones of Mixtral: against transformers, native and in plain torch."""

import pytest
import torch
from transformers import GptOssConfig, Llama4TextConfig, NemotronHConfig, PhimoeConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssMLP
from transformers.models.llama4.modeling_llama4 import Llama4TextExperts, Llama4TextMoe
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHExperts
from transformers.models.phimoe.modeling_phimoe import sparsemixer

from core_platforms.cpu.experts import NativeExperts
from core_runtime.layers import experts as reference
from core_runtime.layers.kernels import KernelSet
from core_runtime.layers.linear import Linear
from core_runtime.specs.routing_spec import RoutingSpec
from core_runtime.weights.formats import Dense

HIDDEN, INNER, EXPERTS, TOKENS = 48, 40, 6, 37


@pytest.fixture(params=["native", "torch"])
def kernel_set(request, kernels):
    return KernelSet([kernels] if request.param == "native" else [])


def randomized(module):
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.3)
    return module.eval()


def routed(kernel_set, logits, routing):
    ids = torch.empty(len(logits), routing.top_k, dtype=torch.int64)
    weights = torch.empty(ids.shape)
    kernel_set.route(logits, routing, None, ids, weights)
    return ids, weights


def side(kernel_set, matrices, biases=None):
    layers = []
    for index, matrix in enumerate(matrices):
        bias = None if biases is None else biases[index].detach()
        kernel = kernel_set.linear(Dense(matrix.detach().contiguous()), activation="none", bias=bias)
        layers.append(Linear([kernel]))
    return layers


def close(actual, wanted):
    torch.testing.assert_close(actual, wanted.detach(), atol=3e-5, rtol=3e-5)


def test_gpt_oss_has_biases_a_clamped_gate_and_the_softmax_of_the_chosen(kernel_set, isa):
    shape = {"hidden_size": HIDDEN, "intermediate_size": INNER, "num_local_experts": EXPERTS}
    block = randomized(GptOssMLP(GptOssConfig(**shape, num_experts_per_tok=3)))
    theirs = block.experts
    x = torch.randn(TOKENS, HIDDEN)
    ids, weights = routed(kernel_set, block.router(x)[0].detach(), RoutingSpec(3))
    halves = [torch.cat((w[:, ::2], w[:, 1::2]), 1).T for w in theirs.gate_up_proj]
    biases = [torch.cat((b[::2], b[1::2])) for b in theirs.gate_up_proj_bias]
    first = side(kernel_set, halves, biases)
    second = side(kernel_set, [w.T for w in theirs.down_proj], theirs.down_proj_bias)
    out = torch.empty_like(x)
    kernel_set.experts(first, second, f"clamped_swiglu:{theirs.alpha}:{theirs.limit}")(x, ids, weights, out)
    close(out, block(x[None])[0][0])


def test_llama_4_weighs_what_its_experts_take(kernel_set, isa):
    config = Llama4TextConfig(
        hidden_size=HIDDEN, intermediate_size=INNER, num_local_experts=EXPERTS, num_experts_per_tok=2
    )
    block = randomized(Llama4TextMoe(config))
    theirs = block.experts
    assert isinstance(theirs, Llama4TextExperts)
    x = torch.randn(TOKENS, HIDDEN)
    routing = RoutingSpec(2, "sigmoid", renormalize=False)
    ids, weights = routed(kernel_set, (x @ block.router.weight.T).detach(), routing)
    first = side(kernel_set, [w.T for w in theirs.gate_up_proj])
    second = side(kernel_set, [w.T for w in theirs.down_proj])
    run = kernel_set.experts(first, second, "silu", weight_inputs=True)
    out = block.shared_expert(x).detach()
    run(x, ids, weights, out, accumulate=True)
    close(out, block(x[None])[0])


@pytest.mark.parametrize("activation", ["none", "bf16"])
def test_weighted_inputs_are_rounded_behind_the_weight(kernels, isa, activation):
    first = [Dense(torch.randn(2 * INNER, HIDDEN).bfloat16()) for _ in range(EXPERTS)]
    second = [Dense(torch.randn(HIDDEN, INNER).bfloat16()) for _ in range(EXPERTS)]
    x = torch.randn(TOKENS, HIDDEN)
    ids = torch.rand(TOKENS, EXPERTS).argsort(-1)[:, :2].contiguous()
    weights = torch.rand(ids.shape)
    found = []
    for kernel_set in (KernelSet([kernels]), KernelSet([])):
        sides = [[Linear([kernel_set.linear(w, activation=activation)]) for w in each] for each in (first, second)]
        run = kernel_set.experts(*sides, "silu", weight_inputs=True)
        out = torch.empty(TOKENS, HIDDEN)
        run(x, ids, weights, out)
        found.append(out)
    mine, wanted = found
    assert (mine - wanted).abs().max() < 1e-2 * wanted.abs().max()
    alone = torch.empty(1, HIDDEN)
    sides = [[kernels.linear(w, activation=activation) for w in each] for each in (first, second)]
    run = kernels.experts(*sides, "silu", weight_inputs=True)
    run(x[5:6], ids[5:6], weights[5:6], alone)
    assert torch.equal(alone[0], mine[5])


def test_nemotron_h_has_experts_without_a_gate(kernel_set, isa):
    config = NemotronHConfig(hidden_size=HIDDEN, moe_intermediate_size=INNER, n_routed_experts=EXPERTS)
    theirs = randomized(NemotronHExperts(config))
    x = torch.randn(TOKENS, HIDDEN)
    ids = torch.rand(TOKENS, EXPERTS).argsort(-1)[:, :3].contiguous()
    weights = torch.rand(ids.shape)
    run = kernel_set.experts(side(kernel_set, theirs.up_proj), side(kernel_set, theirs.down_proj), "relu2")
    out = torch.empty_like(x)
    run(x, ids, weights, out)
    close(out, theirs(x, ids, weights))


def test_all_native_experts_run_together(kernels):
    kernel_set = KernelSet([kernels])
    first = side(kernel_set, torch.randn(EXPERTS, INNER, HIDDEN), torch.randn(EXPERTS, INNER))
    second = side(kernel_set, torch.randn(EXPERTS, HIDDEN, INNER))
    assert isinstance(kernel_set.experts(first, second, "relu2", weight_inputs=True), NativeExperts)


@pytest.mark.parametrize("jitter", [0.01, 0.2, 2.0])
def test_the_sparse_mixer_is_that_of_phi_3_5(kernel_set, isa, jitter):
    config = PhimoeConfig()
    assert config.num_experts_per_tok == 2
    logits = torch.randn(300, 16)
    wanted, wanted_ids = sparsemixer(logits, jitter, training=False)
    ids, weights = routed(kernel_set, logits, RoutingSpec(2, "sparse_mixer", renormalize=False, jitter=jitter))
    assert torch.equal(ids, wanted_ids)
    close(weights, wanted)


def test_an_epsilon_joins_the_sum_of_scores(kernel_set, isa):
    logits = torch.randn(20, 12) - 14
    routing = RoutingSpec(3, "sigmoid", epsilon=1e-6)
    ids, weights = routed(kernel_set, logits, routing)
    scores = logits.sigmoid().gather(1, ids)
    close(weights, scores / (scores.sum(1, keepdim=True) + 1e-6))
    assert weights.sum(1).max() < 1


def test_a_sparse_mixer_with_groups_is_refused(kernel_set):
    with pytest.raises(ValueError, match="a sparse mixer has no groups, no bias and no renormalization"):
        routed(kernel_set, torch.randn(2, 8), RoutingSpec(2, "sparse_mixer"))


def test_reference_experts_with_another_number_of_sides_are_refused():
    with pytest.raises(ValueError, match="expected one each an expert"):
        reference.ReferenceExperts([], [], "silu", KernelSet([]).gated)
