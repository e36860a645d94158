"""Catalog rows of the product kernels, in every tile and with every form of a weight.

Owns: the rows. Never does: compile. Called by: the catalog of kernels.

Heavier variants are compiled in addition to the plain one: experts, a single program that adds all segments, one program
for each segment, and a gate.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch

from core_kernels.triton.activation import Gate
from core_kernels.triton.compiling.catalog import KernelRow, size_of
from core_kernels.triton.compiling.chips import NAMES
from core_kernels.triton.products.forms import PACKED_FORMS, weight_types
from core_kernels.triton.products.kernel import SIZES, STEPS
from core_kernels.triton.products.packed import Form
from core_kernels.triton.products.product import SIMPLE_DENSE, product_constants
from core_kernels.triton.products.tile_rows import Tile
from core_kernels.triton.products.tiles import MOST_SEGMENTS, Tiles, shipped, weight_word

MODULE: Final = "core_kernels.triton.products.kernel"
NUMBERS: Final = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
DENSE: Final = Form("dense")
ANY_SHAPE: Final = (0, 0)
EXPERTS: Final = {"pairs": "*i32", "experts": "*i32"}
APART: Final = {"partial": "*fp32", "counters": "*i32"}
"""What a program for each segment has."""
SILU: Final = Gate("silu")
OTHER_GATES: Final = (Gate("gelu_tanh"), Gate("clamped_swiglu", 1.702, 7.0))


def _product(chip: str, form: Form, number: str, tile: Tile, *present: str, **changes: object) -> KernelRow:
    """Return one row. present: tensors of the weight beyond what its form implies. changes: to the plain product's
    constants.
    """
    signature, absent = weight_types(form, number, *present)
    signature |= {"x": f"*{number}", "out": f"*{number}"} | dict.fromkeys(STEPS + SIZES, "i32")
    constants = product_constants(form, NUMBERS[number], 1, False, False, None) | absent
    constants |= {"WHOLE": True, "EARLY": False, "BN": tile.bn, "BT": tile.bt, "bias": None}
    constants |= dict.fromkeys((*EXPERTS, *APART))
    rows = f"up to {tile.rows} rows" if tile.rows else "any number of rows"
    words = [f"{number} x {weight_word(form, NUMBERS[number])} in blocks of {form.width}", *present, rows]
    if changes.pop("routed", False):
        signature |= EXPERTS
        constants = {name: value for name, value in constants.items() if name not in EXPERTS}
        words.append("experts")
    constants |= changes
    if changes.get("SPLIT"):
        signature |= APART
        constants = {name: value for name, value in constants.items() if name not in APART}
        words.append("segments apart")
    elif "SEGMENTS" in changes:
        words.append("segments together")
    gate = changes.get("GATE")
    if isinstance(gate, Gate):
        words.append("gated" if gate == SILU else f"gated by {gate.kind}")
    return KernelRow(
        f"product: {', '.join(words)} ({chip})",
        f"{MODULE}:product",
        signature,
        constants,
        chips=(chip,),
        num_warps=tile.warps,
        num_stages=tile.stages,
        uses_mma=number != "fp32",
        reads=_reads(form, signature, tile),
    )


def _reads(form: Form, signature: dict[str, str], tile: Tile) -> tuple[int, ...]:
    """Return the bytes of the tiles of a run: of W, and of x for each block of the run."""
    x = form.width * tile.bt * size_of(signature["x"])
    return (tile.bn * form.width * size_of(signature["values"]), *(x,) * form.fields)


def _dense(chip: str, number: str) -> Iterator[KernelRow]:
    tiles = Tiles(shipped())
    form = SIMPLE_DENSE if number == "fp32" else DENSE
    word = weight_word(form, NUMBERS[number])
    plain = tiles.of(chip, word, "plain", ANY_SHAPE)
    in_segments = tiles.of(chip, word, "segments", ANY_SHAPE)
    of_experts = tiles.of(chip, word, "experts", ANY_SHAPE)
    for tile in plain:
        yield _product(chip, form, number, tile)
    yield _product(chip, form, number, of_experts[-1], routed=True)
    yield _product(chip, form, number, of_experts[-1], routed=True, GATE=SILU)
    for tile in in_segments[:-1]:
        yield _product(chip, form, number, tile, SEGMENTS=MOST_SEGMENTS, SPLIT=True, ACCUMULATE=True)
    yield _product(chip, form, number, in_segments[-1], SEGMENTS=MOST_SEGMENTS)
    for tile in (plain[0], plain[-1]):
        yield _product(chip, form, number, tile, GATE=SILU)
    yield _product(chip, form, number, in_segments[0], SEGMENTS=MOST_SEGMENTS, SPLIT=True, GATE=SILU)
    for gate in OTHER_GATES:
        yield _product(chip, form, number, plain[0], GATE=gate)


def _packed(chip: str, form: Form, present: tuple[str, ...]) -> Iterator[KernelRow]:
    word = weight_word(form, torch.bfloat16)
    tiles = Tiles(shipped()).of(chip, word, "plain", ANY_SHAPE)
    for tile in tiles:
        yield _product(chip, form, "bf16", tile, *present)
    yield _product(chip, form, "bf16", tiles[-1], *present, SEGMENTS=MOST_SEGMENTS)
    yield _product(chip, form, "bf16", tiles[-1], *present, routed=True)
    yield _product(chip, form, "bf16", tiles[-1], *present, GATE=SILU)
    yield _product(chip, form, "bf16", tiles[0], *present, SEGMENTS=MOST_SEGMENTS, SPLIT=True, ACCUMULATE=True)


def _rows() -> Iterator[KernelRow]:
    for chip in NAMES:
        for number in NUMBERS:
            yield from _dense(chip, number)
        for form, present in PACKED_FORMS:
            yield from _packed(chip, form, present)


ROWS: Final = tuple(_rows())
