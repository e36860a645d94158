"""Weights with an order of inputs on their way to kernels: fused where their orders are equal, else side by side."""

from typing import Any

import pytest
import torch

from core.api.errors import UserError
from core.api.specs import LayerSpec, PartPlan
from core_platforms.cpu.kernels import NativeKernels
from core_runtime.layers.reference import ReferenceKernels
from core_runtime.specs.model_part import Part
from core_runtime.weights.formats import IntGroups
from core_runtime.weights.input_order import InputOrder
from tests.models.harness import Harness
from tests.models.test_parts import SEQUENCES, InGroups, checkpoint


class Ordered(InGroups):
    """As a method with act-order: the key of a plan cannot tell the order, which is only read with the tensors.

    apart: each part has an order of its own.
    dequantized: what was packed, by its name in the checkpoint.
    """

    def __init__(self, apart: bool) -> None:
        self.apart = apart
        self.dequantized: dict[str, torch.Tensor] = {}

    def plan(self, part: LayerSpec) -> PartPlan:
        n, k = part.shape
        nbytes = n * k + n * k // 8 + 4 * k
        return PartPlan((f"{part.name}.weight",), "int8_groups", "none", "groups", nbytes, ordered=True)

    def pack(self, part: LayerSpec, tensors: dict[str, torch.Tensor]) -> IntGroups:
        inputs = part.shape[1]
        seed = sum(part.name.encode()) if self.apart else inputs
        order = torch.randperm(inputs, generator=torch.Generator().manual_seed(seed))
        name = f"{part.name}.weight"
        stored = super().pack(part, {name: tensors[name][:, order]})
        weight = IntGroups(8, 16, stored.values, stored.scale, zero=128, order=InputOrder.of(order))
        self.dequantized[name] = weight.dequantize()
        return weight


class Counting(ReferenceKernels):
    """Keeps the shapes of all prepared weights."""

    name = "counting"
    features = ReferenceKernels.features

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def linear(self, weight: Any, *, activation: Any, bias: Any = None) -> Any:
        self.shapes.append(weight.shape)
        return super().linear(weight, activation=activation, bias=bias)


@pytest.mark.parametrize("family", ["llama_bias", "mixtral"])
def test_neighbours_of_other_orders_are_prepared_apart_and_give_the_same(family: str) -> None:
    hf_config, state = checkpoint(family)
    for apart in (False, True):
        kernels = Counting()
        method = Ordered(apart)
        model = Harness(hf_config, state, kernels=[kernels], method=method)
        fused = 96 + 24 + 24
        assert kernels.shapes.count((fused, 48)) == (0 if apart else 3), "queries, keys and values"
        assert kernels.shapes.count((24, 48)) == (6 if apart else 0)
        native = Harness(hf_config, state, kernels=[NativeKernels(1)], method=method)
        plain = Harness(hf_config, {**state, **method.dequantized}).run(SEQUENCES)
        torch.testing.assert_close(model.run(SEQUENCES), plain, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(native.run(SEQUENCES), plain, rtol=1e-4, atol=1e-4)


def test_an_ordered_layer_cannot_be_divided_along_its_inputs() -> None:
    hf_config, state = checkpoint("llama")
    with pytest.raises(UserError, match=r"cannot be divided into 2 parts: .* order of inputs"):
        Harness(hf_config, state, part=Part(0, 2), reduce=lambda tensor: None, method=Ordered(apart=False))
