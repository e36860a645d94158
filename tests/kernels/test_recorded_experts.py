"""A router, its experts and the one that all share, recorded and replayed: the bits of the calls themselves."""

from types import SimpleNamespace

import pytest
import torch

from core_platforms.cpu.tape import Tape, record
from core_runtime.layers.kernels import KernelSet
from core_runtime.layers.linear import Linear
from core_runtime.layers.partial_sums import PartialSums
from core_runtime.layers.workspace import Workspace
from core_runtime.models.mlp import DenseMLP, ExpertsMLP
from core_runtime.specs.decoder_spec import ExpertsSpec, MLPSpec
from core_runtime.specs.expert_placement import ExpertPlacement, HeldExperts
from core_runtime.specs.routing_spec import RoutingSpec
from core_runtime.weights.formats import Dense

EXPERTS, TOP_K, HIDDEN, INNER, ROWS = 6, 2, 48, 32, 300


def prepared(kernels: KernelSet, rows: int, columns: int) -> Linear:
    weight = torch.randn(rows, columns).bfloat16() / columns**0.5
    return Linear([kernels.linear(Dense(weight), activation="bf16")])


def built(kernels: KernelSet, held: HeldExperts | None = None) -> ExpertsMLP:
    count = EXPERTS if held is None else held.per_rank
    gate_up = [prepared(kernels, 2 * INNER, HIDDEN) for _ in range(count)]
    down = [prepared(kernels, HIDDEN, INNER) for _ in range(count)]
    experts = kernels.experts(gate_up, down, "silu", max_ranges=8 if held is None else 4)
    both = prepared(kernels, 2 * INNER, HIDDEN)
    shared = DenseMLP(kernels, MLPSpec(size=INNER), both, prepared(kernels, HIDDEN, INNER))
    routing = RoutingSpec(top_k=TOP_K, renormalize=True)
    names = ("experts", "gate_proj", "up_proj", "down_proj")
    spec = ExpertsSpec(EXPERTS, INNER, routing, names, shared_intermediate_size=INNER, held=held)
    return ExpertsMLP(kernels, prepared(kernels, EXPERTS, HIDDEN), experts, spec, shared=shared)


def buffers(rows: int) -> SimpleNamespace:
    return SimpleNamespace(
        normed=torch.zeros(rows, HIDDEN),
        router=torch.zeros(rows, EXPERTS),
        expert_ids=torch.zeros(rows, TOP_K, dtype=torch.int64),
        expert_slots=torch.zeros(rows, TOP_K, dtype=torch.int64),
        expert_weights=torch.zeros(rows, TOP_K),
        shared_gate_up=torch.zeros(rows, 2 * INNER),
        shared_mlp=torch.zeros(rows, INNER),
    )


@pytest.mark.parametrize("threads", [1, 2])
def test_experts_are_recorded_and_replayed(native, kernels, threads):
    mlp, all_rows = built(KernelSet([kernels])), buffers(ROWS)
    out = torch.zeros(ROWS, HIDDEN)
    native.pool_init(threads)

    def run(rows: int) -> None:
        views = SimpleNamespace(**{name: tensor[:rows] for name, tensor in vars(all_rows).items()})
        views.mlp_views = lambda shared: (views.shared_gate_up, views.shared_mlp)
        mlp(views.normed, views, out[:rows], accumulate=True)

    assert mlp.capturable
    tape = record(lambda: run(3), 3, 1)
    assert isinstance(tape, Tape)
    for rows in (1, 3, 40, ROWS):
        all_rows.normed.normal_()
        before = torch.randn(ROWS, HIDDEN)
        out.copy_(before)
        run(rows)
        expected = out.clone()
        out.copy_(before)
        for name, buffer in vars(all_rows).items():
            if name != "normed":
                buffer.fill_(-1)
        tape(rows, 1)
        assert torch.equal(out, expected)
        assert not torch.equal(out[:rows], before[:rows])


@pytest.mark.parametrize("placement", [ExpertPlacement(), ExpertPlacement("round_robin")])
def test_experts_of_a_rank_are_recorded(kernels, placement):
    mlp, views = built(KernelSet([kernels]), HeldExperts(1, 2, EXPERTS, placement)), buffers(ROWS)
    workspace = Workspace(torch.device("cpu"))
    mlp.attach(PartialSums(workspace, mlp.kernels, lambda partial: None, ROWS, HIDDEN))
    views.mlp_views = lambda shared: (views.shared_gate_up, views.shared_mlp)
    out = torch.zeros(ROWS, HIDDEN)
    assert mlp.capturable
    tape = record(lambda: mlp(views.normed, views, out, accumulate=True), ROWS, 1)
    views.normed.normal_()
    out.zero_()
    mlp(views.normed, views, out, accumulate=True)
    expected = out.clone()
    out.zero_()
    tape(ROWS, 1)
    assert torch.equal(out, expected) and out.any()
    assert int(mlp.places.loads.sum()) == 3 * ROWS * TOP_K


def test_a_rank_adds_nothing_where_others_compute_all(kernels):
    mlp = built(KernelSet([kernels]), HeldExperts(1, 2, EXPERTS))
    x = torch.full((5, HIDDEN), torch.nan)
    absent = torch.full((5, TOP_K), -1)
    out = torch.ones(5, HIDDEN)
    mlp.experts(x, absent, torch.ones(5, TOP_K), out, accumulate=True)
    assert torch.equal(out, torch.ones(5, HIDDEN))


def test_what_cannot_be_recorded_is_said(kernels):
    assert not built(KernelSet([])).capturable
