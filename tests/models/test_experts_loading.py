"""Experts on their way from the checkpoint to a kernel: as one weight where a provider takes it, else one by one."""

import pytest
import torch

from core.api.specs import DensePlan, LayerSpec, PartPlan
from core_platforms.cpu.kernels import NativeKernels
from core_runtime.layers.reference import ReferenceKernels
from core_runtime.weights.experts import Experts
from tests.models.harness import Harness
from tests.models.test_parts import SEQUENCES, InGroups, checkpoint


class Grouping(ReferenceKernels):
    """Takes experts whole, and counts the linear kernels that are made beside them."""

    name = "grouping"

    def __init__(self) -> None:
        self.taken: list[tuple[Experts, Experts]] = []
        self.num_alone = 0

    def linear(self, weight, *, activation, bias=None):
        self.num_alone += 1
        return super().linear(weight, activation=activation, bias=bias)

    def grouped_experts(self, gate_up, down, activation, *, precision, gated):
        self.taken.append((gate_up, down))
        reference = ReferenceKernels()
        return reference.grouped_experts(gate_up, down, activation, precision=precision, gated=gated)


class Refusing(Grouping):
    """Takes experts one by one."""

    def supports(self, query):
        return ["no"] if query.op == "grouped_experts" else []


class OneIsPlain(InGroups):
    """One expert of the first layer is plain, all others are packed."""

    def plan(self, part: LayerSpec) -> PartPlan | DensePlan:
        if part.name.endswith("layers.0.block_sparse_moe.experts.1.w2"):
            return DensePlan((f"{part.name}.weight",))
        return super().plan(part)


@pytest.mark.parametrize("method", [None, InGroups()])
def test_a_provider_gets_the_experts_of_a_layer_as_one_weight(method) -> None:
    hf_config, state = checkpoint("mixtral")
    kernels = Grouping()
    together = Harness(hf_config, state, kernels=[kernels], method=method)
    assert [side.shape for side in kernels.taken[0]] == [(4, 160, 48), (4, 48, 80)]
    assert len(kernels.taken) == 3
    assert kernels.num_alone == 2 + 3 * 3, "embedding, head, and of each layer attention's two and the router"
    refusing = Refusing()
    alone = Harness(hf_config, state, kernels=[refusing], method=method)
    assert not refusing.taken
    assert refusing.num_alone == kernels.num_alone + 3 * 4 * 2
    assert torch.equal(together.run(SEQUENCES), alone.run(SEQUENCES))
    assert together.weights.nbytes == alone.weights.nbytes


def test_experts_of_different_formats_are_prepared_one_by_one() -> None:
    hf_config, state = checkpoint("mixtral")
    kernels = Grouping()
    mixed = Harness(hf_config, state, kernels=[kernels], method=OneIsPlain())
    assert len(kernels.taken) == 2, "layers 1 and 2"
    expected = Harness(hf_config, state, kernels=[Refusing()], method=OneIsPlain())
    assert torch.equal(mixed.run(SEQUENCES), expected.run(SEQUENCES))


def test_a_provider_of_contract_1_still_gets_a_linear_kernel_for_each_expert() -> None:
    hf_config, state = checkpoint("mixtral")
    native = Harness(hf_config, state, kernels=[NativeKernels(1)])
    expected = Harness(hf_config, state).run(SEQUENCES)
    assert type(native.weights.blocks[0].mlp.experts).__name__ == "NativeExperts"
    assert (native.run(SEQUENCES) - expected).abs().max() < 1e-4 * expected.abs().max()
