"""A matrix for each head on Triton kernels: the reference's numbers, and bits of a row that are its own."""

import torch

from core.api.specs import KernelQuery
from core_kernels.triton.kernels import TritonKernels
from core_kernels.triton.products.heads import TritonHeads
from core_kernels.triton.products.tiles import tiles_with
from core_kit.oracles.numbers import close, generator
from core_runtime.layers.heads import BatchedHeads
from core_runtime.layers.kernels import KernelSet

HEADS, OUTPUTS, INPUTS = 3, 20, 48


def test_heads_equal_the_reference_whatever_their_strides():
    random = generator("heads")
    weight = torch.randn(HEADS, OUTPUTS, INPUTS, generator=random)
    mine, reference = TritonHeads(weight, "none", tiles_with(None)), BatchedHeads(weight, rounded=False)
    wide = torch.randn(19, HEADS, INPUTS + 8, generator=random)
    for rows in (1, 19):
        for layout in ((rows, HEADS, OUTPUTS), (rows, HEADS + 1, OUTPUTS)):
            got = torch.full(layout, torch.nan)[:, :HEADS]
            expected = torch.empty(rows, HEADS, OUTPUTS)
            mine(wide[:rows, :, :INPUTS], got)
            reference(wide[:rows, :, :INPUTS], expected)
            close(got, expected, 1e-5, f"{rows} rows, {layout}")


def test_a_row_has_the_same_bits_alone_and_among_others():
    random = generator("rows of heads")
    weight = torch.randn(HEADS, OUTPUTS, INPUTS, generator=random).bfloat16()
    kernel = TritonHeads(weight, "none", tiles_with(None))
    x = torch.randn(40, HEADS, INPUTS, generator=random).bfloat16()
    together, alone = torch.empty(40, HEADS, OUTPUTS), torch.empty(1, HEADS, OUTPUTS)
    kernel(x, together)
    kernel(x[33:34], alone)
    assert torch.equal(alone[0], together[33])


def test_the_set_runs_all_heads_together():
    """Instead of a kernel a head, where the provider of the matrices can."""
    chosen = KernelSet([TritonKernels()]).heads(torch.randn(HEADS, OUTPUTS, INPUTS), activation="none")
    assert isinstance(chosen, TritonHeads)
    assert not TritonKernels().supports(KernelQuery("route", "cuda"))
