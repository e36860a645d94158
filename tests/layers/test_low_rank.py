"""The updates of adapters in plain torch: the meaning of the operation `low_rank`."""

import pytest
import torch
from torch import Tensor

from core_runtime.contracts import LowRankTable
from core_runtime.layers.kernels import KernelSet
from core_runtime.layers.low_rank import num_segments
from core_runtime.layers.rows import RowKernels
from core_runtime.weights.low_rank import LowRank

SHAPE = (40, 96)


def update(rank: int, outputs: int = 40, first: int = 0, seed: int = 0) -> LowRank:
    random = torch.Generator().manual_seed(seed)
    a = torch.randn(rank, 96, generator=random)
    b = torch.randn(outputs, rank, generator=random)
    return LowRank(a, b, 0.5, first)


def table(num_rows: int = 4) -> LowRankTable:
    return KernelSet([], "cpu").low_rank(SHAPE, num_rows, torch.float32, max_rank=64, segments=8)


def applied(kernel: LowRankTable, x: Tensor, rows: list[int]) -> Tensor:
    out = torch.ones(len(x), SHAPE[0])
    kernel(x, torch.tensor(rows, dtype=torch.int32), out)
    return out


def test_each_row_gets_its_own_adapter() -> None:
    kernel = table()
    small = update(3, seed=1)
    large = update(17, seed=2)
    kernel.set(0, kernel.pack([small]))
    kernel.set(3, kernel.pack([large]))
    x = torch.randn(4, 96, generator=torch.Generator().manual_seed(3))
    out = applied(kernel, x, [3, -1, 0, 3])
    expected = torch.ones(4, 40)
    for row, one in ((0, large), (2, small), (3, large)):
        expected[row] += 0.5 * (one.b @ (one.a @ x[row]))
    torch.testing.assert_close(out, expected)
    assert torch.equal(out[1], torch.ones(40))


def test_parts_that_share_the_inputs_are_updated_apart() -> None:
    kernel = table()
    first = update(4, outputs=16, seed=4)
    last = update(2, outputs=8, first=32, seed=5)
    kernel.set(1, kernel.pack([last, first]))
    x = torch.randn(1, 96, generator=torch.Generator().manual_seed(6))
    out = applied(kernel, x, [1])
    expected = torch.ones(40)
    expected[:16] += 0.5 * (first.b @ (first.a @ x[0]))
    expected[32:] += 0.5 * (last.b @ (last.a @ x[0]))
    torch.testing.assert_close(out[0], expected)


def test_gain_multiplies_the_sum_and_shift_follows() -> None:
    kernel = table()
    plain = update(4, seed=7)
    gain = torch.linspace(0.5, 2, 40)
    shift = torch.linspace(-1, 1, 40)
    kernel.set(0, kernel.pack([LowRank(plain.a, plain.b, plain.scale, 0, gain, shift)]))
    bias_only = LowRank(torch.empty(0, 96), torch.empty(40, 0), 1.0, shift=shift)
    kernel.set(1, kernel.pack([bias_only]))
    x = torch.randn(2, 96, generator=torch.Generator().manual_seed(8))
    out = applied(kernel, x, [0, 1])
    torch.testing.assert_close(out[0], gain * (1 + 0.5 * (plain.b @ (plain.a @ x[0]))) + shift)
    torch.testing.assert_close(out[1], 1 + shift)


def test_a_cleared_row_updates_nothing() -> None:
    kernel = table()
    kernel.set(2, kernel.pack([update(4)]))
    kernel.clear(2)
    assert torch.equal(applied(kernel, torch.ones(1, 96), [2]), torch.ones(1, 40))


def test_rows_have_the_same_bits_alone_and_among_others() -> None:
    kernel = KernelSet([RowKernels()], "cpu").low_rank(SHAPE, 2, torch.float32, max_rank=16, segments=8)
    kernel.set(0, kernel.pack([update(16, seed=9)]))
    kernel.set(1, kernel.pack([update(5, seed=10)]))
    x = torch.randn(33, 96, generator=torch.Generator().manual_seed(11))
    rows = [index % 3 - 1 for index in range(33)]
    together = applied(kernel, x, rows)
    for index in range(33):
        alone = applied(kernel, x[index : index + 1], rows[index : index + 1])
        assert torch.equal(alone[0], together[index])


def test_two_halves_of_the_inputs_add_up_to_the_bits_of_the_whole() -> None:
    """Two ranks, each with half of the inputs, hold the two subtrees of each sum of A x."""
    whole = update(6, outputs=6, seed=12)
    one = LowRank(whole.a, torch.eye(6), 1.0)
    x = torch.randn(1, 96, generator=torch.Generator().manual_seed(13))
    kernels = KernelSet([], "cpu")
    complete = kernels.low_rank((6, 96), 1, torch.float32, max_rank=6, segments=8)
    complete.set(0, complete.pack([one]))
    rows = torch.zeros(1, dtype=torch.int32)
    expected = torch.zeros(1, 6)
    complete(x, rows, expected)
    total = torch.zeros(1, 6)
    for half in (slice(0, 48), slice(48, 96)):
        part = kernels.low_rank((6, 48), 1, torch.float32, max_rank=6, segments=4)
        part.set(0, part.pack([LowRank(one.a[:, half].contiguous(), one.b, 1.0)]))
        mine = torch.zeros(1, 6)
        part(x[:, half], rows, mine)
        total += mine
    assert torch.equal(total, expected)


@pytest.mark.parametrize(("inputs", "most", "segments"), [(576, 8, 8), (96, 8, 8), (36, 8, 2), (7, 8, 1), (96, 2, 2)])
def test_segments_are_equal_and_even(inputs: int, most: int, segments: int) -> None:
    assert num_segments(inputs, most) == segments


@pytest.mark.parametrize(
    ("updates", "words"),
    [
        ([LowRank(torch.ones(2, 95), torch.ones(40, 2), 1.0)], "95 columns, expected the layer's 96 inputs"),
        ([LowRank(torch.ones(2, 96), torch.ones(40, 3), 1.0)], r"expected \[r, K\] and \[N, r\]"),
        ([LowRank(torch.ones(2, 96), torch.ones(40, 2), 1.0, first=1)], "ends at output 41, but the layer has 40"),
        ([update(2), update(2, outputs=8, first=8)], "two updates share output 8"),
        ([update(40, outputs=20), update(25, outputs=20, first=20)], "the ranks add up to 65, expected at most 64"),
        ([LowRank(torch.ones(2, 96).bfloat16(), torch.ones(40, 2).bfloat16(), 1.0)], "expected torch.float32"),
        ([LowRank(torch.ones(2, 96), torch.ones(40, 2), 1.0, gain=torch.ones(39))], r"expected float32 \[40\]"),
    ],
)
def test_updates_that_do_not_fit_are_refused(updates: list[LowRank], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        table().pack(updates)
