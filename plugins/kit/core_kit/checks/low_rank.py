"""Checks of a provider's updates of adapters against the reference.

Owns: the checks. Never does: define the operation; `core_runtime.layers.low_rank` does. Called by: `core_kit.checks.kernels`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from core.api.specs import KernelQuery
from core_kit.case import Failure, Skipped, Subject
from core_kit.checks.sampling import optional_kernel
from core_kit.oracles.numbers import close, generator, same_bits
from core_runtime.contracts import JoinsProducts, LowRankForm, LowRankTable
from core_runtime.layers.low_rank import ReferenceLowRank
from core_runtime.weights.formats import Dense
from core_runtime.weights.low_rank import DTYPES, LowRank

SHAPES = ((96, 64), (40, 72), (37, 77))
"""(N, K) of layers: one that divides evenly, one that does not, an odd one."""
RANKS = ((1, 3), (16, 8), (64, 33))
"""Ranks of the two parts of an adapter's updates."""
TABLE_ROWS = 5
MAX_RANK = 100
ROWS = (1, 9)


def low_rank_equals_reference(subject: Subject) -> None:
    """low_rank equals the reference: ranks of any size next to each other, parts, gains and shifts, rows without adapters."""
    for label, mine, reference, shape in _tables(subject):
        random = generator(label)
        for count in ROWS:
            wide = torch.randn(count, shape[1] + 3, generator=random)
            rows = torch.randint(-1, TABLE_ROWS, (count,), generator=random, dtype=torch.int32)
            before = torch.randn(count, shape[0] + 5, generator=random)
            got, expected = before.clone(), before.clone()
            mine(wide[:, : shape[1]], rows, got[:, : shape[0]])
            reference(wide[:, : shape[1]], rows, expected[:, : shape[0]])
            close(got, expected, 1e-5, f"{label}, {count} rows")


def low_rank_rows_are_apart(subject: Subject) -> None:
    """With `batch_invariant`: low_rank gives a row the bits that it has by itself, whatever adapters other rows have."""
    if not subject.manifest.spec.capabilities.get("batch_invariant"):
        raise Skipped("it does not claim batch_invariant; `core config explain` says so to users")
    for label, table, _, shape in _tables(subject):
        random = generator(label)
        x = torch.randn(9, shape[1], generator=random)
        rows = torch.arange(9, dtype=torch.int32) % (TABLE_ROWS + 1) - 1
        before = torch.randn(9, shape[0], generator=random)
        together = before.clone()
        table(x, rows, together)
        for row in (0, 3, 4, 8):
            alone = before[row : row + 1].clone()
            table(x[row : row + 1].clone(), rows[row : row + 1].clone(), alone)
            same_bits(alone[0], together[row], f"row {row} of {label} alone, compared with among 9")


def low_rank_tables_change(subject: Subject) -> None:
    """An adapter that is put into a row replaces the one before; a cleared row updates nothing."""
    for label, table, _, shape in _tables(subject):
        x = torch.randn(1, shape[1], generator=generator(label))
        first = _applied(table, x, 1, shape[0])
        table.set(1, table.pack(_updates(shape, table.form.dtype, 2, f"{label}, again")))
        second = _applied(table, x, 1, shape[0])
        if torch.equal(first, second):
            raise Failure(f"{label}: a row computes with its former adapter")
        table.clear(1)
        same_bits(_applied(table, x, 1, shape[0]), torch.zeros(1, shape[0]), f"{label}: a cleared row")
        try:
            table.pack([LowRank(torch.zeros(2, shape[1] + 1), torch.zeros(shape[0], 2), 1.0)])
        except ValueError:
            continue
        raise Failure(f"{label}: it packs an update with {shape[1] + 1} inputs for a layer with {shape[1]}")


def low_rank_joins_as_apart(subject: Subject) -> None:
    """A product that a table joins with its updates has the bits of both calls."""
    for label, table, _, shape in _tables(subject):
        if not isinstance(table, JoinsProducts):
            raise Skipped("its tables join no products")
        random = generator(label)
        weight = Dense(torch.randn(shape, generator=random))
        linear = subject.loaded.linear(weight, activation="none")
        joined = table.joined(linear)
        if joined is None:
            continue
        x = torch.randn(9, shape[1], generator=random)
        rows = torch.arange(9, dtype=torch.int32) % (TABLE_ROWS + 1) - 1
        before = torch.randn(9, shape[0], generator=random)
        for accumulate in (False, True):
            got, expected = before.clone(), before.clone()
            joined(x, rows, got, accumulate=accumulate)
            linear(x, expected, accumulate=accumulate)
            table(x, rows, expected)
            same_bits(got, expected, f"{label}, joined with the product, compared with in two calls")


def _applied(table: LowRankTable, x: Tensor, row: int, outputs: int) -> Tensor:
    out = torch.zeros(1, outputs)
    table(x, torch.tensor([row], dtype=torch.int32), out)
    return out


def _tables(subject: Subject) -> Iterator[tuple[str, LowRankTable, ReferenceLowRank, tuple[int, int]]]:
    """Yield equal tables of the provider and of the reference, for each shape and dtype that it supports."""
    make = optional_kernel(subject, "low_rank")
    tried = False
    for shape in SHAPES:
        for dtype in DTYPES:
            name = str(dtype).removeprefix("torch.")
            if subject.loaded.supports(KernelQuery("low_rank", subject.device, name, shape=shape)):
                continue
            tried = True
            label = f"low_rank of {name} {shape}"
            form = LowRankForm(shape, TABLE_ROWS, dtype, MAX_RANK, 8, torch.device("cpu"))
            mine = make(form)
            reference = ReferenceLowRank(form)
            for row in range(TABLE_ROWS - 1):  # the last row stays empty
                updates = _updates(shape, dtype, row, f"{label}, adapter {row}")
                mine.set(row, mine.pack(updates))
                reference.set(row, reference.pack(updates))
            yield label, mine, reference, shape
    if not tried:
        raise Skipped("it serves low_rank in no dtype known here")


def _updates(shape: tuple[int, int], dtype: torch.dtype, number: int, seed: str) -> list[LowRank]:
    """Return the updates of one adapter: two parts of different ranks, or a bias alone."""
    outputs, inputs = shape
    random = generator(seed)
    middle = outputs // 3
    sizes = (middle, outputs - middle - 1)  # one output has no update
    updates = []
    first = 0
    for part, size in enumerate(sizes):
        rank = 0 if number == 3 else RANKS[number % len(RANKS)][part]
        a = torch.randn(rank, inputs, generator=random) / inputs**0.5
        b = torch.randn(size, rank, generator=random) / max(rank, 1) ** 0.5
        with_vectors = number == 3 or part == 1
        gain = torch.rand(size, generator=random) + 0.5 if with_vectors and number != 1 else None
        shift = torch.randn(size, generator=random) if with_vectors else None
        updates.append(LowRank(a.to(dtype), b.to(dtype), 0.25 * (number + 1), first, gain, shift))
        first += size
    return updates
