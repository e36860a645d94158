"""Updates of adapters on every instruction set: the reference's numbers; bits depend on a row and its adapter alone."""

import os
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from core_platforms.cpu.low_rank import REGION, Arena
from core_platforms.cpu.tape import record
from core_quantization.online.rounding import quantize
from core_runtime.contracts import LowRankForm
from core_runtime.layers.low_rank import ReferenceLowRank
from core_runtime.layers.reference import ReferenceKernels
from core_runtime.weights.formats import Dense
from core_runtime.weights.low_rank import LowRank

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
WIDE = (960, 576)  # q, k and v of a small model
PARTS = ((0, 576), (576, 192), (768, 192))
RANKS = (8, 64, 16, 3)


def updates_of(rank, dtype, seed, inputs=576, parts=PARTS):
    random = torch.Generator().manual_seed(seed)
    made = []
    for first, size in parts:
        a = torch.randn(rank, inputs, generator=random) / inputs**0.5
        b = torch.randn(size, rank, generator=random) / rank**0.5
        made.append(LowRank(a.to(dtype), b.to(dtype), 2.0, first))
    return made


def form_of(shape, dtype, num_rows=4, max_rank=192, segments=8):
    return LowRankForm(shape, num_rows, dtype, max_rank, segments, torch.device("cpu"))


def table_of(make, dtype, shape=WIDE, ranks=RANKS, parts=PARTS):
    table = make(form_of(shape, dtype, len(ranks), 3 * max(ranks)))
    for row, rank in enumerate(ranks):
        table.set(row, table.pack(updates_of(rank, dtype, row, shape[1], parts)))
    return table


def random_rows(count, adapters=4):
    return torch.randint(-1, adapters, (count,), dtype=torch.int32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [1, 2, 7, 64, 700])
def test_equals_the_reference(kernels, isa, dtype, count):
    mine = table_of(kernels.low_rank, dtype)
    reference = table_of(ReferenceLowRank, dtype)
    x, rows = torch.randn(count, 579)[:, :576], random_rows(count)
    got = torch.randn(count, 964)
    expected = got.clone()
    mine(x, rows, got[:, :960])
    reference(x, rows, expected[:, :960])
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_bits_depend_on_the_row_and_its_adapter_alone(native, kernels, isa, dtype, threads):
    table = table_of(kernels.low_rank, dtype)
    x, rows, before = torch.randn(67, 576), random_rows(67), torch.randn(67, 960)
    together = before.clone()
    table(x, rows, together)
    native.pool_init(threads)
    for row in range(67):
        alone = before[row : row + 1].clone()
        table(x[row : row + 1], rows[row : row + 1], alone)
        assert torch.equal(alone[0], together[row])
    again = before.clone()
    table(x, rows, again)
    assert torch.equal(again, together)


def test_bits_do_not_depend_on_the_row_of_the_table_or_other_adapters(kernels, isa):
    crowded = table_of(kernels.low_rank, torch.bfloat16)
    alone = kernels.low_rank(form_of(WIDE, torch.bfloat16, 9))
    alone.set(7, alone.pack(updates_of(64, torch.bfloat16, 1)))
    x = torch.randn(3, 576)
    got, expected = torch.zeros(3, 960), torch.zeros(3, 960)
    crowded(x, torch.tensor([1, 1, 1], dtype=torch.int32), got)
    alone(x, torch.tensor([7, 7, 7], dtype=torch.int32), expected)
    assert torch.equal(got, expected)


@pytest.mark.parametrize("inputs", [1, 7, 36, 100, 577])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_number_of_inputs(kernels, isa, dtype, inputs):
    parts = ((0, 33), (40, 5))
    mine = table_of(kernels.low_rank, dtype, (50, inputs), (5, 1), parts)
    reference = table_of(ReferenceLowRank, dtype, (50, inputs), (5, 1), parts)
    x, rows = torch.randn(9, inputs), random_rows(9, 2)
    got, expected = torch.ones(9, 50), torch.ones(9, 50)
    mine(x, rows, got)
    reference(x, rows, expected)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(got[:, 33:40], torch.ones(9, 7))


def test_two_halves_of_the_inputs_add_up_to_the_bits_of_the_whole(kernels, isa):
    """As with two ranks: each holds half of the segments of A x. B is the identity, so that out is A x."""
    a, one = torch.randn(16, 576), torch.eye(16)
    x, rows = torch.randn(5, 576), torch.zeros(5, dtype=torch.int32)
    outs = []
    for segments, part in ((8, slice(0, 576)), (4, slice(0, 288)), (4, slice(288, 576))):
        inner = a[:, part].contiguous()
        table = kernels.low_rank(form_of((16, inner.shape[1]), torch.float32, 1, 16, segments))
        table.set(0, table.pack([LowRank(inner, one, 1.0)]))
        out = torch.zeros(5, 16)
        table(x[:, part], rows, out)
        outs.append(out)
    whole, first, second = outs
    assert torch.equal(whole, first + second)


def test_a_value_that_is_not_finite_stays_in_its_row(kernels, isa):
    table = table_of(kernels.low_rank, torch.bfloat16)
    x, rows, out = torch.randn(8, 576), torch.ones(8, dtype=torch.int32), torch.zeros(8, 960)
    x[3, 5], x[4, 7] = torch.nan, torch.inf
    table(x, rows, out)
    finite = out.isfinite().all(1)
    assert finite.tolist() == [True] * 3 + [False] * 2 + [True] * 3


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_tape_reads_the_rows_and_the_table_when_it_is_replayed(native, kernels, threads):
    native.pool_init(threads)
    table = table_of(kernels.low_rank, torch.bfloat16)
    x, rows, out = torch.randn(500, 576), random_rows(500), torch.zeros(500, 960)
    tape = record(lambda: table(x[:3], rows[:3], out[:3]), 3, 1)
    assert tape is not None
    table.set(2, table.pack(updates_of(40, torch.bfloat16, 11)))
    table.clear(1)
    for count in (1, 3, 97, 192, 500):
        rows[:] = random_rows(500)
        expected = torch.zeros(500, 960)
        table(x[:count], rows[:count], expected[:count])
        out.zero_()
        tape(count, 1)
        assert torch.equal(out, expected)


def test_an_adapter_takes_the_memory_of_its_own_ranks(kernels):
    table = kernels.low_rank(form_of((576, 576), torch.bfloat16))
    sizes = [table.pack(updates_of(rank, torch.bfloat16, 0, parts=((0, 576),))).nbytes for rank in (16, 64)]
    numbers = [2 * rank * (576 + 576) for rank in (16, 64)]
    for nbytes, least in zip(sizes, numbers, strict=True):
        assert least <= nbytes <= least + 512


def test_wrong_tensors_are_refused(kernels):
    table = table_of(kernels.low_rank, torch.float32)
    x, out = torch.randn(2, 576), torch.zeros(2, 960)
    with pytest.raises(ValueError, match="rows has 3 rows, expected 2"):
        table(x, torch.zeros(3, dtype=torch.int32), out)
    with pytest.raises(ValueError, match=r"expected contiguous torch\.int32"):
        table(x, torch.zeros(2, dtype=torch.int64), out)
    with pytest.raises(ValueError, match="the ranks add up to 300"):
        table.pack(updates_of(100, torch.float32, 0))


WEIGHTS = {
    "float32": (Dense, "none"),
    "bfloat16": (lambda w: Dense(w.bfloat16()), "bf16"),
    "int8": (lambda w: quantize(w, "int8_groups"), "int8"),
}


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("count", [1, 5, 64, 200])
def test_joined_calls_have_the_bits_of_separate_ones(kernels, isa, weight, count):
    pack, activation = WEIGHTS[weight]
    linear = kernels.linear(pack(torch.randn(192, 576)), activation=activation, bias=torch.randn(192))
    parts = ((0, 96), (100, 92))  # the second one begins within a panel
    table = table_of(kernels.low_rank, torch.bfloat16, (192, 576), parts=parts)
    joined = table.joined(linear)
    x, rows = torch.randn(count, 579)[:, :576], random_rows(count)
    for accumulate in (False, True):
        got = torch.full((count, 195), 7.0)
        apart = got.clone()
        linear(x, apart[:, :192], accumulate=accumulate)
        table(x, rows, apart[:, :192])
        joined(x, rows, got[:, :192], accumulate=accumulate)
        assert torch.equal(got, apart)


def test_products_of_other_providers_are_not_joined(kernels):
    table = table_of(kernels.low_rank, torch.float32)
    assert table.joined(ReferenceKernels().linear(Dense(torch.randn(960, 576)), activation="none")) is None
    assert table.joined(kernels.linear(Dense(torch.randn(64, 576)), activation="none")) is None


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_tape_of_joined_calls(native, kernels, threads):
    native.pool_init(threads)
    linear = kernels.linear(Dense(torch.randn(960, 576).bfloat16()), activation="bf16")
    table = table_of(kernels.low_rank, torch.bfloat16)
    joined = table.joined(linear)
    x, rows, out = torch.randn(500, 576), random_rows(500), torch.zeros(500, 960)
    tape = record(lambda: joined(x[:3], rows[:3], out[:3]), 3, 1)
    for count in (1, 3, 97, 192, 500):
        rows[:] = random_rows(500)
        rows[:8] = -1
        expected = torch.zeros(500, 960)
        joined(x[:count], rows[:count], expected[:count])
        out.zero_()
        tape(count, 1)
        assert torch.equal(out, expected)


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_memory_of_dropped_adapters_is_returned(kernels):
    table = kernels.low_rank(form_of((576, 576), torch.float32, 2, 512))
    updates = updates_of(512, torch.float32, 0, parts=((0, 576),))  # 2.4 MB
    for row in (0, 1):
        table.set(row, table.pack(updates))
    before = resident()
    for turn in range(60):
        table.set(turn % 2, table.pack(updates))
    assert resident() - before < 24 << 20


def test_rests_of_regions_are_used_for_later_updates():
    arena = Arena()
    blocks = [arena.take(size << 10) for size in (344, 147, 540, 270) * 60]
    taken = sum(len(block) for _, block in blocks)
    assert len({id(memory) for memory, _ in blocks}) * REGION <= 1.01 * taken + REGION
    starts = sorted((block.data_ptr(), len(block)) for _, block in blocks)
    assert all(start + size <= after for (start, size), (after, _) in pairwise(starts)), "no two overlap"
