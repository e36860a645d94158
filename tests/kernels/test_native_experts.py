"""Routing and layers of experts: against transformers' sparse blocks, the reference and float64, on every instruction set."""

import pytest
import torch
from torch import nn
from transformers import DeepseekV3Config, MixtralConfig, Qwen3MoeConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

from core_platforms.cpu.experts import NativeExperts
from core_runtime.layers import experts as reference
from core_runtime.layers.kernels import KernelSet
from core_runtime.layers.linear import Linear
from core_runtime.specs.routing_spec import RoutingSpec
from core_runtime.weights.formats import Dense, IntGroups


def routed(kernels, logits, routing, bias=None):
    tokens = logits.shape[0]
    ids, weights = torch.empty(tokens, routing.top_k, dtype=torch.int64), torch.empty(tokens, routing.top_k)
    kernels.route(logits, routing, bias, ids, weights)
    return ids, weights


def layer(kernels, gate_up, down, activation="none", act="silu", native=True):
    sides = [[Linear([kernels.linear(w, activation=activation)]) for w in side] for side in (gate_up, down)]
    made = KernelSet([kernels]).experts(*sides, act)
    assert isinstance(made, NativeExperts) == native
    return made


def expected(x, ids, weights, gate_up, down, act=nn.functional.silu):
    """In float64, one token at a time."""
    out = torch.zeros(x.shape, dtype=torch.float64)
    for t, j in ((t, j) for t in range(x.shape[0]) for j in range(ids.shape[1])):
        expert = int(ids[t, j])
        gate, up = (gate_up[expert].dequantize().double() @ x[t].double()).chunk(2)
        out[t] += weights[t, j].double() * (down[expert].dequantize().double() @ (act(gate) * up))
    return out


def dense(experts, inner, hidden, dtype=torch.float32):
    gate_up = [Dense((torch.randn(2 * inner, hidden) / hidden**0.5).to(dtype)) for _ in range(experts)]
    return gate_up, [Dense((torch.randn(hidden, inner) / inner**0.5).to(dtype)) for _ in range(experts)]


def groups(n, k, bits, size=32):
    values = torch.randint(0, 256, (n, k * bits // 8), dtype=torch.uint8)
    return IntGroups(bits, size, values, (torch.rand(n, k // size) * 0.01).half(), None, 1 << (bits - 1))


def choice(tokens, experts, top_k):
    ids = torch.rand(tokens, experts).argsort(-1)[:, :top_k].contiguous()
    return ids, torch.rand(tokens, top_k)


SMALL = {"hidden_size": 48, "num_experts_per_tok": 3, "num_attention_heads": 4, "num_key_value_heads": 2}


def blocks():
    torch.manual_seed(3)
    shape = {**SMALL, "intermediate_size": 40}
    yield MixtralSparseMoeBlock(MixtralConfig(**shape, num_local_experts=8)), RoutingSpec(3), None
    for renormalize in (True, False):
        config = Qwen3MoeConfig(**SMALL, moe_intermediate_size=24, num_experts=10, norm_topk_prob=renormalize)
        yield Qwen3MoeSparseMoeBlock(config), RoutingSpec(3, renormalize=renormalize), None
    config = DeepseekV3Config(
        **SMALL, moe_intermediate_size=24, n_routed_experts=12, n_group=4, topk_group=2, routed_scaling_factor=2.5
    )
    spec = RoutingSpec(3, "sigmoid", factor=2.5, groups=4, top_groups=2, group_rank="best_two")
    yield DeepseekV3MoE(config), spec, torch.rand(12) * 0.3


@pytest.mark.parametrize("tokens", [1, 37])
@pytest.mark.parametrize("on_kernels", [True, False])
def test_sparse_blocks_equal_transformers(kernels, isa, tokens, on_kernels):
    for block, routing, bias in blocks():
        with torch.no_grad():
            for parameter in block.parameters():
                parameter.normal_(std=0.2)
        if bias is not None:
            block.gate.e_score_correction_bias.copy_(bias)
            block.shared_experts = nn.Module()
            block.shared_experts.forward = torch.zeros_like
        x = torch.randn(1, tokens, 48)
        want = block.eval()(x)
        want = (want[0] if isinstance(want, tuple) else want)[0].detach()
        mine = KernelSet([kernels] if on_kernels else [])
        x = x[0]
        gate_up, down = (
            [Dense(w.detach()) for w in stack] for stack in (block.experts.gate_up_proj, block.experts.down_proj)
        )
        ids, weights = routed(mine, x @ block.gate.weight.detach().T, routing, bias)
        sides = [[Linear([mine.linear(w, activation="none")]) for w in side] for side in (gate_up, down)]
        out = torch.empty_like(x)
        mine.experts(*sides, "silu")(x, ids, weights, out)
        torch.testing.assert_close(out, want, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
@pytest.mark.parametrize("experts", [1, 8, 60, 128])
def test_routing_equals_the_reference(kernels, isa, scores, experts):
    logits = torch.randn(300, experts + 3)[:, :experts] * 3
    logits[0] = 0.5  # all equal: the lowest ids
    bias = torch.randn(experts) * 0.2
    for top_k in {1, min(4, experts), experts}:
        for renormalize, extra in ((True, None), (False, bias)):
            routing = RoutingSpec(top_k, scores, renormalize, 1.5)
            ids, weights = routed(kernels, logits, routing, extra)
            want_ids, want = torch.empty_like(ids), torch.empty_like(weights)
            reference.route(logits, routing, extra, want_ids, want)
            same = (ids == want_ids).all(-1)
            assert same.float().mean() > 0.98  # scores that round to one another may change places
            torch.testing.assert_close(weights[same], want[same], rtol=1e-5, atol=1e-7)
            if extra is None:
                assert same.all()
                assert ids[0].tolist() == list(range(top_k))


@pytest.mark.parametrize("rank", ["best", "best_two"])
@pytest.mark.parametrize(("count", "size"), [(4, 2), (8, 4), (6, 1)])
def test_groups_limit_the_choice(kernels, isa, rank, count, size):
    logits = torch.randn(50, count * size)
    routing = RoutingSpec(2, "sigmoid", groups=count, top_groups=2, group_rank=rank)
    ids, weights = routed(kernels, logits, routing)
    want_ids, want = torch.empty_like(ids), torch.empty_like(weights)
    reference.route(logits, routing, None, want_ids, want)
    assert torch.equal(ids, want_ids)
    torch.testing.assert_close(weights, want)
    assert all(len(set(row)) <= 2 for row in (ids // size).tolist())


def test_ids_are_valid_whatever_the_logits_are(kernels, isa):
    logits = torch.randn(6, 16)
    logits[0] = float("nan")
    logits[1, 3], logits[2] = float("nan"), float("-inf")
    logits[3], logits[4, 5] = float("inf"), float("inf")
    for routing in (RoutingSpec(5), RoutingSpec(5, groups=4, top_groups=2, group_rank="best_two")):
        for bias in (None, torch.full((16,), float("nan"))):
            ids, _ = routed(kernels, logits, routing, bias)
            assert all(len(set(row)) == 5 for row in ids.tolist()) and ids.min() >= 0 and ids.max() < 16
    assert torch.isfinite(routed(kernels, logits, RoutingSpec(5))[1][5]).all()


@pytest.mark.parametrize("tokens", [1, 2, 7, 100, 300])
@pytest.mark.parametrize(("experts", "top_k"), [(1, 1), (8, 2), (4, 4), (64, 6)])
def test_experts_equal_float64(kernels, isa, tokens, experts, top_k):
    gate_up, down = dense(experts, 24, 40)
    ids, weights = choice(tokens, experts, top_k)
    if experts == 8:
        ids = ids % 3 if top_k == 1 else torch.stack([ids[:, 0] % 3, 3 + ids[:, 1] % 2], 1)  # 5, 6 and 7 stay empty
    x = torch.randn(tokens, 45)[:, :40]
    wide = torch.full((tokens, 43), 7.0)
    run = layer(kernels, gate_up, down)
    run(x, ids, weights, wide[:, :40])
    want = expected(x, ids, weights, gate_up, down)
    torch.testing.assert_close(wide[:, :40].double(), want, rtol=1e-5, atol=1e-5)
    assert (wide[:, 40:] == 7.0).all()
    before = torch.randn(tokens, 40)
    added = before.clone()
    run(x, ids, weights, added, accumulate=True)
    assert torch.equal(added, before + wide[:, :40])


FORMATS = {
    "float16": (lambda n, k: Dense(torch.randn(n, k).half() / k**0.5), "none", 1e-4),
    "bfloat16": (lambda n, k: Dense(torch.randn(n, k).bfloat16() / k**0.5), "bf16", 2e-2),
    "int4": (lambda n, k: groups(n, k, 4), "int8", 2e-2),
    "int8": (lambda n, k: groups(n, k, 8), "int8", 2e-2),
    "int8_float": (lambda n, k: groups(n, k, 8), "none", 1e-4),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_serves_experts_and_bits_do_not_depend_on_company(native, kernels, isa, name):
    make, activation, tolerance = FORMATS[name]
    gate_up, down = [make(128, 96) for _ in range(7)], [make(96, 64) for _ in range(7)]
    run = layer(kernels, gate_up, down, activation, "gelu_tanh")
    x, out = torch.randn(120, 96), torch.empty(120, 96)
    ids, weights = choice(120, 7, 3)
    run(x, ids, weights, out)
    want = expected(x[:9], ids, weights, gate_up, down, lambda g: nn.functional.gelu(g, approximate="tanh"))
    assert (out[:9] - want).abs().max() < tolerance * want.abs().max()
    for threads in (1, 3):
        native.pool_init(threads)
        for start, stop in ((0, 1), (57, 58), (20, 117)):
            part = torch.empty(stop - start, 96)
            run(x[start:stop], ids[start:stop], weights[start:stop], part)
            assert torch.equal(part, out[start:stop])
    native.pool_init(2)


def test_large_layers_are_worked_through_in_chunks_of_tokens(kernels):
    gate_up, down = dense(2, 4096, 16, torch.bfloat16)
    run = layer(kernels, gate_up, down, "bf16")
    x, out, alone = torch.randn(2500, 16), torch.empty(2500, 16), torch.empty(1, 16)
    ids, weights = choice(2500, 2, 2)
    run(x, ids, weights, out)  # 2500 * 2 pairs * 8192 floats: more than one chunk's memory
    for t in (0, 1300, 2499):
        run(x[t : t + 1], ids[t : t + 1], weights[t : t + 1], alone)
        assert torch.equal(alone[0], out[t])


def test_layers_of_different_forms_run_on_the_reference(kernels):
    gate_up, down = dense(3, 32, 64)
    mixed = [groups(64, 64, 4), *gate_up[1:]]
    ids, weights = choice(5, 3, 2)
    x, out = torch.randn(5, 64), torch.empty(5, 64)
    layer(kernels, mixed, down, native=False)(x, ids, weights, out)
    torch.testing.assert_close(out.double(), expected(x, ids, weights, mixed, down), rtol=1e-4, atol=1e-4)


def test_wrong_arguments_are_refused(kernels):
    gate_up, down = dense(4, 16, 32)
    run = layer(kernels, gate_up, down)
    x, out, weights = torch.randn(2, 32), torch.empty(2, 32), torch.rand(2, 2)
    run(x[:0], torch.empty(0, 2, dtype=torch.int64), weights[:0], out[:0])
    for bad in (-1, 4):
        with pytest.raises(IndexError, match=f"expert {bad} of 4"):
            run(x, torch.tensor([[0, 1], [2, bad]]), weights, out)
    with pytest.raises(ValueError, match="ids"):
        run(x, torch.zeros(2, 2, dtype=torch.int32), weights, out)
    with pytest.raises(ValueError, match="weights"):
        run(x, torch.zeros(2, 2, dtype=torch.int64), torch.rand(2, 3), out)
    with pytest.raises(ValueError, match="does not fit 4 experts"):
        routed(kernels, torch.randn(2, 4), RoutingSpec(5))
    with pytest.raises(ValueError, match="4 gate-and-up layers and 3 down layers"):
        layer(kernels, gate_up, down[:3])
