"""Weights that are prepared in memory of the caller: as many bytes as told, and the bits of those that allocate."""

import pytest
import torch

from core_kit.fixtures.weights import activations, linear_query, random_weights
from core_platforms.cpu.kernels import NativeKernels
from core_runtime.layers.kernels import KernelSet
from core_runtime.layers.reference import ReferenceKernels
from core_runtime.layers.rows import RowKernels
from core_runtime.weights.formats import Dense

PAGE = 4096


class Room:
    """Memory whose every byte is 0xA5, and how much of it was asked for."""

    def __init__(self) -> None:
        self.taken: list[torch.Tensor] = []

    def take(self, nbytes: int) -> torch.Tensor:
        memory = torch.full((nbytes + 2 * PAGE,), 0xA5, dtype=torch.uint8)
        start = -memory.data_ptr() % PAGE
        self.taken.append(memory[start:])
        return memory[start : start + nbytes]


@pytest.mark.parametrize("make", [lambda: NativeKernels(2), ReferenceKernels, RowKernels])
def test_every_format_is_prepared_where_the_caller_says(make) -> None:
    provider = make()
    x = torch.randn(3, 96)
    ids = torch.tensor([4, 0, 69])
    for weight in random_weights((70, 96)):
        for activation in activations(weight):
            if provider.supports(linear_query("cpu", weight, activation)):
                continue
            told = provider.prepared_nbytes(weight, activation=activation)
            room = Room()
            bias = torch.randn(70)
            mine = KernelSet([provider]).linear(weight, activation=activation, bias=bias, room=room.take)
            own = provider.linear(weight, activation=activation, bias=bias)
            (memory,) = room.taken
            assert not bool((memory[:told] == 0xA5).all()), "it lies there"
            assert bool((memory[told : told + 64] == 0xA5).all()), "and not behind"
            got, expected = torch.empty(3, 70), torch.empty(3, 70)
            mine(x, got)
            own(x, expected)
            assert torch.equal(got, expected)
            rows, wanted = torch.empty(3, 96), torch.empty(3, 96)
            mine.rows(ids, rows)
            own.rows(ids, wanted)
            assert torch.equal(rows, wanted)
            assert told <= mine.nbytes + 64 * len(weight.tensors())
            memory[:told] = 0
            mine.rows(ids, rows)
            assert not bool(rows.any()), "it has no other copy"


@pytest.mark.parametrize(
    "wrong", [torch.zeros(100, dtype=torch.uint8), torch.zeros(1 << 20), torch.zeros(1 << 20, dtype=torch.uint8)[1:]]
)
def test_memory_that_does_not_do_is_refused(wrong: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"into is .* expected uint8 \[24576\]"):
        NativeKernels(2).linear(Dense(torch.zeros(64, 96)), activation="none", into=wrong)


def test_a_provider_of_contract_1_allocates_for_itself() -> None:
    class Older(ReferenceKernels):
        name = "older"

        def linear(self, weight, *, activation, bias=None):
            return super().linear(weight, activation=activation, bias=bias)

    room = Room()
    weight = Dense(torch.randn(8, 96))
    kernel = KernelSet([Older()]).linear(weight, activation="none", room=room.take)
    assert kernel.weight is weight
    assert not room.taken
