"""Launches that do several things, or begin early, have the bits of single and late ones, replayed too."""

import pytest
import torch

from core_kernels.triton.kernels import TritonKernels
from core_kernels.triton.products.tiles import SPLIT_ROWS, segments_of
from core_runtime.weights.formats import Dense

pytestmark = pytest.mark.gpu
HIDDEN, INNER = 1024, 4096
ROWS = (1, 16, 17, SPLIT_ROWS, SPLIT_ROWS + 1, 300)
REPLAYS = 20


class Layer:
    """Norm, product with a gate, and a product that adds to the residual stream."""

    def __init__(self, device: torch.device, early: bool) -> None:
        torch.manual_seed(0)
        self.kernels = TritonKernels(early=early)
        self.norm = torch.randn(HIDDEN, device=device)
        shapes = (2 * INNER, HIDDEN), (HIDDEN, INNER)
        both, down = (torch.randn(shape, device=device).bfloat16() / 32 for shape in shapes)
        self.gate_up = self.kernels.linear(Dense(both), activation="none")
        self.down = self.kernels.linear(Dense(down), activation="none")

    def __call__(self, residual: torch.Tensor, *, fused: bool = True) -> None:
        normed = torch.empty_like(residual)
        inner = residual.new_empty(len(residual), INNER)
        self.kernels.rms_norm(residual, self.norm, 1e-5, normed)
        if fused:
            self.gate_up.gated(normed, "silu", inner)
        else:
            first = residual.new_empty(len(residual), 2 * INNER)
            self.gate_up(normed, first)
            self.kernels.gated(first, "silu", inner)
        self.down(inner, residual, accumulate=True)


def _residual(device: torch.device, rows: int) -> torch.Tensor:
    return torch.randn(max(ROWS), HIDDEN, generator=torch.Generator().manual_seed(1)).bfloat16().to(device)[:rows]


@pytest.fixture(scope="module")
def expected(device: torch.device) -> torch.Tensor:
    """Of single, late launches, in which one program adds all segments."""
    assert segments_of(HIDDEN, INNER) > 1 and segments_of(2 * INNER, HIDDEN) > 1
    residual = _residual(device, max(ROWS)).clone()
    Layer(device, early=False)(residual, fused=False)
    return residual


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("rows", ROWS)
def test_the_same_bits_call_by_call_and_replayed(
    device: torch.device, expected: torch.Tensor, rows: int, early: bool
) -> None:
    layer = Layer(device, early)
    start = _residual(device, rows)
    residual = start.clone()
    layer(residual)
    assert torch.equal(residual, expected[:rows])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layer(residual)
    for _ in range(REPLAYS):
        residual.copy_(start)
        graph.replay()
        assert torch.equal(residual, expected[:rows])
    assert not layer.down.weight.counters.any()
