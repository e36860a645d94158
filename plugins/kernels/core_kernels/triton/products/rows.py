"""Catalog rows of the product kernels, in every tile and with every form of a weight.

Owns: the rows. Never does: compile. Called by: the catalog of kernels.

Heavier variants are compiled in addition to the plain one: experts, a single program that adds all segments, one program
for each segment, and a gate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

import torch

from core_kernels.triton.activation import Gate
from core_kernels.triton.compiling.catalog import KernelRow, size_of
from core_kernels.triton.compiling.chips import LEAST, NAMES
from core_kernels.triton.products.codes import FLOATS8_FROM, Decoding, decoding_for
from core_kernels.triton.products.forms import PACKED_FORMS, weight_types
from core_kernels.triton.products.kernel import SIZES, STEPS
from core_kernels.triton.products.packed import WIDEST, Form, Scales
from core_kernels.triton.products.product import FLOATS8_WIDTH, SIMPLE_DENSE, product_constants
from core_kernels.triton.products.tile_rows import SMALLEST, Tile
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
FLOATS8_PRODUCTS: Final = {
    "sm_90": (r"\bwgmma\.mma_async\S*\.m64n\d+k32\.f32\.e4m3\.e4m3\b",),
    "sm_100": (r"\btcgen05\.mma\S*\.kind::f8f6f4\b",),
    "sm_120": (r"\bmma\.sync\S*\.e4m3\.e4m3\.f32\b",),
}
"""The chips' products of 8-bit floats."""
CONVERSION: Final = r"\bcvt\.\S*\.e4m3x2\b"
MOST_EACH: Final[dict[tuple[str, Decoding], float]] = {
    ("int", "ptx"): 3.0,
    ("int8", "ptx"): 4.0,
    ("e4m3", "ptx_floats8"): 3.0,
}
"""Instructions for a number of a weight in the loop for few rows, at most, by code and decoding."""
BY_WARP: Final = ("sm_80", "sm_120")
"""Chips whose matrix units take both operands from registers: each warp finds the inputs for itself."""
SHARED_BY_WARP: Final = 1.0
OF_SEGMENT: Final = 0.5
"""More instructions where a program sums one segment: they tell its loop where the segment ends."""


class Variant(NamedTuple):
    """A product as its kernel is compiled.

    number: Triton's name of the type of the inputs; of the results of `coded` ones.
    present: tensors of the weight beyond those that its form implies.
    coded: whether inputs are 8-bit floats as the weight is.
    decoding: what the chip decodes with.
    """

    form: Form
    number: str
    decoding: Decoding
    present: tuple[str, ...] = ()
    coded: bool = False

    @property
    def compute(self) -> torch.dtype:
        """Return the type of the product."""
        if not self.coded:
            return NUMBERS[self.number]
        return torch.float8_e4m3fn if self.decoding == "ptx_floats8" else torch.bfloat16

    @property
    def scales(self) -> Scales:
        """Return what scales multiply in the usual weight of the form."""
        form = self.form
        if not form.is_exact or "minimum" in self.present:
            return "numbers"
        if form.code in ("int8", "e4m3", "e5m2"):
            return "rows"
        return "runs" if form.width == WIDEST else "blocks"

    def holds(self, chip: str) -> tuple[str, ...]:
        """Return what the assembly must hold: instructions for 8-bit floats, where the chip has them."""
        if self.decoding != "ptx_floats8":
            return ()
        if self.coded:
            return FLOATS8_PRODUCTS[chip]
        return (CONVERSION,) if self.form.code == "e4m3" else ()

    def most_each(self, chip: str, *, split: bool) -> float:
        """Return the instructions of arithmetic for a number in the loop for few rows, at most; 0: any."""
        most = MOST_EACH.get((self.form.code, self.decoding), 0.0)
        return most + SHARED_BY_WARP * (chip in BY_WARP) + OF_SEGMENT * split if most else 0.0

    @property
    def name(self) -> str:
        """Return the words of the row's name."""
        form = self.form
        words = [f"{'e4m3' if self.coded else self.number} x {weight_word(form, NUMBERS[self.number])}"]
        words = [f"{words[0]} in blocks of {form.width}", *self.present]
        if form.is_float8 and not self.coded and self.decoding == "ptx":
            words.append("without instructions for it")
        return ", ".join(words)


def _product(chip: str, variant: Variant, tile: Tile, **changes: object) -> KernelRow:
    """Return one row. changes: to the plain product's constants."""
    form, number = variant.form, variant.number
    signature, absent = weight_types(form, number, *variant.present)
    signature |= {"x": f"*{number}", "out": f"*{number}"} | dict.fromkeys(STEPS + SIZES, "i32")
    group = form.run if variant.scales == "runs" else form.width
    constants = product_constants(form, variant.compute, variant.decoding, variant.scales, group, 1, False, False, None)
    constants |= absent
    constants |= {"WHOLE": True, "EARLY": False, "BN": tile.bn, "BT": tile.bt, "bias": None, "x_scale": None}
    constants |= dict.fromkeys((*EXPERTS, *APART))
    if variant.coded:
        signature |= {"x": "*u8", "x_scale": "*fp32"}
        del constants["x_scale"]
    words = _words(variant, tile, changes)
    if changes.pop("routed", False):
        signature |= EXPERTS
        constants = {name: value for name, value in constants.items() if name not in EXPERTS}
    constants |= changes
    if changes.get("SPLIT"):
        signature |= APART
        constants = {name: value for name, value in constants.items() if name not in APART}
    is_narrow = tile.bt == SMALLEST and variant.scales != "numbers" and form.width == WIDEST
    has_floats8 = variant.decoding == "ptx_floats8"
    return KernelRow(
        f"product: {', '.join(words)} ({chip})",
        f"{MODULE}:product",
        signature,
        constants,
        chips=(chip,),
        num_warps=tile.warps,
        num_stages=tile.stages,
        fp_fusion=False,
        uses_mma=number != "fp32",
        reads=_reads(form, signature, tile),
        least=FLOATS8_FROM if has_floats8 else 0,
        holds=variant.holds(chip),
        decodes=tile.bn * form.run,
        most_each=variant.most_each(chip, split=bool(changes.get("SPLIT"))) if is_narrow else 0.0,
    )


def _words(variant: Variant, tile: Tile, changes: Mapping[str, object]) -> list[str]:
    """Return the words of a row's name."""
    words = [variant.name, f"up to {tile.rows} rows" if tile.rows else "any number of rows"]
    if changes.get("routed"):
        words.append("experts")
    if changes.get("SPLIT"):
        words.append("segments apart")
    elif "SEGMENTS" in changes:
        words.append("segments together")
    gate = changes.get("GATE")
    if isinstance(gate, Gate):
        words.append("gated" if gate == SILU else f"gated by {gate.kind}")
    return words


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
    variant = Variant(form, number, "portable")
    for tile in plain:
        yield _product(chip, variant, tile)
    yield _product(chip, variant, of_experts[-1], routed=True)
    yield _product(chip, variant, of_experts[-1], routed=True, GATE=SILU)
    for tile in in_segments[:-1]:
        yield _product(chip, variant, tile, SEGMENTS=MOST_SEGMENTS, SPLIT=True, ACCUMULATE=True)
    yield _product(chip, variant, in_segments[-1], SEGMENTS=MOST_SEGMENTS)
    for tile in (plain[0], plain[-1]):
        yield _product(chip, variant, tile, GATE=SILU)
    yield _product(chip, variant, in_segments[0], SEGMENTS=MOST_SEGMENTS, SPLIT=True, GATE=SILU)
    for gate in OTHER_GATES:
        yield _product(chip, variant, plain[0], GATE=gate)


def _packed(chip: str, form: Form, present: tuple[str, ...]) -> Iterator[KernelRow]:
    variants = [Variant(form, "bf16", decoding_for(chip, form.code), present)]
    if form.is_float8 and chip == LEAST:  # its rows also stand for older chips
        variants.append(Variant(form, "bf16", "ptx", present))
    if form.code == "e4m3":
        variants.append(Variant(replace(form, width=FLOATS8_WIDTH), "bf16", variants[0].decoding, coded=True))
    if form.code == "int" and variants[0].scales == "runs":
        variants.append(variants[0]._replace(number="fp16"))
    for variant in variants:
        word = weight_word(variant.form, variant.compute)
        tiles = Tiles(shipped()).of(chip, word, "plain", ANY_SHAPE)
        for tile in tiles:
            yield _product(chip, variant, tile)
        yield _product(chip, variant, tiles[-1], SEGMENTS=MOST_SEGMENTS)
        yield _product(chip, variant, tiles[-1], routed=True)
        yield _product(chip, variant, tiles[-1], GATE=SILU)
        yield _product(chip, variant, tiles[0], SEGMENTS=MOST_SEGMENTS, SPLIT=True, ACCUMULATE=True)


def _rows() -> Iterator[KernelRow]:
    for chip in NAMES:
        for number in NUMBERS:
            yield from _dense(chip, number)
        for form, present in PACKED_FORMS:
            yield from _packed(chip, form, present)


ROWS: Final = tuple(_rows())
