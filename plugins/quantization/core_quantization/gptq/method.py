"""The method of GPTQ checkpoints: the choice of a layout for each module.

Owns: this choice. Never does: unpack. Called by: the manifest.
"""

from __future__ import annotations

from typing import Final

from core.api.specs import Unsupported
from core_quantization.declared.inputs import InputScheme, none_declared, rounds_inputs
from core_quantization.declared.layout import Layout
from core_quantization.declared.method import Choose
from core_quantization.declared.part import StoredPart
from core_quantization.declared.part_format import Run
from core_quantization.gptq.declaration import Declaration
from core_quantization.gptq.layout import GPTQLayout
from core_quantization.tiles.layout import NAMES, SPARSE_NAMES, Tiled

PACKED = "qweight"
"""A module with this tensor is packed, regardless of the declaration's lists of modules."""


def gptq_layouts(declaration: Declaration, run: Run) -> Choose:
    """Return the choice of layouts by the declaration. run: settings of all packed layers."""

    if run.declared and declaration.tiles != "qqq":
        raise none_declared("gptq")

    def choose(part: StoredPart) -> Layout | Unsupported | None:
        if declaration.tiles and not _IN_TILES.isdisjoint(part.tensors):
            return _tiled(part, declaration, run)
        if PACKED not in part.tensors:
            return None
        scheme = declaration.scheme_of(part.own_name)
        if scheme is None:
            return Unsupported(f"'{part.own_name}' is packed, but 'dynamic' of the declaration says that it is plain")
        return GPTQLayout(
            run=run,
            bits=scheme.bits,
            group_size=scheme.group_size,
            sym=scheme.sym,
            desc_act=scheme.desc_act,
            minus_one=declaration.minus_one,
        )

    return choose


_IN_TILES: Final = frozenset({NAMES[0], SPARSE_NAMES[0]})
"""A module with one of these tensors is packed in tiles."""
QQQ_INPUTS: Final = InputScheme("int8", "largest")
"""The rounding of inputs that belongs to QQQ's products."""


def _tiled(part: StoredPart, declaration: Declaration, run: Run) -> Layout | Unsupported | None:
    """Return the layout of a module in tiles."""
    scheme = declaration.scheme_of(part.own_name)
    if scheme is None:
        return Unsupported(f"'{part.own_name}' is packed, but 'dynamic' of the declaration says that it is plain")
    settings = run.of_matrices
    if declaration.tiles == "marlin_24":
        return Tiled(settings, scheme.bits, scheme.group_size, "sparse", SPARSE_NAMES)
    if declaration.tiles == "marlin":
        return Tiled(settings, scheme.bits, scheme.group_size)
    tiled = Tiled(settings, scheme.bits, scheme.group_size, "qqq")
    return rounds_inputs(tiled, QQQ_INPUTS, part) if run.declared else tiled
