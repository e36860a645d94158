"""Updates of adapters on Triton kernels: the reference's numbers, and bits of a row that are its own."""

from types import SimpleNamespace

import pytest
import torch

from core_kernels.triton.kernels import TritonKernels
from core_kernels.triton.low_rank import SINGLE_ROWS
from core_kit.checks import low_rank as kit
from core_kit.oracles.numbers import close, generator
from core_runtime.contracts import LowRankForm
from core_runtime.layers.low_rank import ReferenceLowRank
from core_runtime.weights.low_rank import LowRank

KERNELS = TritonKernels()
SPEC = SimpleNamespace(capabilities={"batch_invariant": True})
SUBJECT = SimpleNamespace(device="cpu", loaded=KERNELS, manifest=SimpleNamespace(spec=SPEC))
SHAPE = (160, 1024)


def tables(dtype):
    """A table and its reference, with adapters of ranks 4 and 20 for two parts."""
    form = LowRankForm(SHAPE, 3, dtype, 40, 8, torch.device("cpu"))
    mine, reference = KERNELS.low_rank(form), ReferenceLowRank(form)
    random = generator("adapters")
    for row, rank in enumerate((4, 20)):
        updates = []
        for first, size in ((0, 96), (96, 64)):
            a = torch.randn(rank, 1024, generator=random) / 32
            b = torch.randn(size, rank, generator=random) / 4
            updates.append(LowRank(a.to(dtype), b.to(dtype), 0.5, first))
        mine.set(row, mine.pack(updates))
        reference.set(row, reference.pack(updates))
    return mine, reference


@pytest.mark.gpu_interpreter
def test_the_kit_is_satisfied():
    """Any ranks, parts, gains, shifts, rows without adapters; tables that change."""
    kit.low_rank_equals_reference(SUBJECT)
    kit.low_rank_rows_are_apart(SUBJECT)
    kit.low_rank_tables_change(SUBJECT)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float32], ids=str)
def test_narrow_activations(kind, stored):
    mine, reference = tables(stored)
    assert mine.segments == 4  # of 256 inputs, at least
    random = generator("x")
    x = torch.randn(9, 1024, generator=random).to(kind)
    rows = torch.arange(9, dtype=torch.int32) % 4 - 1
    got = torch.randn(9, 160, generator=random).to(kind)
    expected = got.clone()
    mine(x, rows, got)
    reference(x, rows, expected)
    close(got.float(), expected.float(), 1e-2, "updates")


@pytest.mark.gpu_interpreter
def test_many_rows_have_the_bits_of_single_ones():
    mine, _ = tables(torch.bfloat16)
    count = SINGLE_ROWS + 12
    random = generator("many")
    x = torch.randn(count, 1024, generator=random).bfloat16()
    rows = (torch.arange(count, dtype=torch.int32) // 37) % 4 - 1
    before = torch.randn(count, 160, generator=random).bfloat16()
    together = before.clone()
    mine(x, rows, together)
    for row in (0, 36, 37, 80, 127, 139):
        alone = before[row : row + 1].clone()
        mine(x[row : row + 1], rows[row : row + 1], alone)
        assert torch.equal(alone[0], together[row])
