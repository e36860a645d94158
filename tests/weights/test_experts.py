"""The experts of a layer as one weight: put together in any order, in every format."""

import pytest
import torch

from core_runtime.weights.experts import ExpertsStack
from core_runtime.weights.formats import Dense
from tests.weights.test_formats import examples


@pytest.mark.parametrize("name", examples())
def test_a_stack_holds_every_expert_in_its_place(name):
    whole = examples()[name]
    experts = [whole.rows(torch.arange(6).roll(shift)) for shift in range(3)]
    stack = ExpertsStack(3, 6)
    for expert, half in ((2, 1), (0, 0), (1, 1), (0, 1), (2, 0), (1, 0)):
        rows = slice(half * 2, 6 if half else 2)
        stack.put(expert, rows.start, experts[expert].rows(rows))
    found = stack.take()
    assert (found.name, found.shape) == (name, (3, 6, 64))
    assert found.nbytes == 3 * whole.nbytes
    for index, expert in enumerate(experts):
        assert torch.equal(found.expert(index).dequantize(), expert.dequantize())
    for field, tensor in found.tensors().items():
        assert tensor.shape[:2] == (3, 6)
        view = found.expert(1).tensors()[field]
        assert view.data_ptr() == tensor[1].data_ptr(), "an expert is a view"


def test_experts_of_different_formats_are_refused():
    stack = ExpertsStack(2, 6)
    stack.put(0, 0, examples()["nf4"])
    with pytest.raises(ValueError, match="format 'dense' cannot join others of format 'nf4'"):
        stack.put(1, 0, Dense(torch.zeros(6, 64)))
