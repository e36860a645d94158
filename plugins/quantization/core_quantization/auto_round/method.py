"""The method of AutoRound checkpoints: the choice of a layout for each module.

Owns: this choice. Never does: unpack. Called by: the manifest.
"""

from __future__ import annotations

from core.api.specs import Unsupported
from core_quantization.auto_round.declaration import Declaration
from core_quantization.awq.layout import AWQLayout
from core_quantization.declared.layout import Layout
from core_quantization.declared.method import Choose
from core_quantization.declared.part import StoredPart
from core_quantization.declared.part_format import Run
from core_quantization.gptq.layout import GPTQLayout

PACKED = "qweight"
"""A module with this tensor is packed, regardless of the declaration's lists of modules."""


def auto_round_layouts(declaration: Declaration, run: Run) -> Choose:
    """Return the choice of layouts by the declaration. run: settings of all packed layers."""
    packing = declaration.packing

    def choose(part: StoredPart) -> Layout | Unsupported | None:
        if PACKED not in part.tensors:
            return None
        scheme = declaration.scheme_of(part.own_name)
        if scheme is None:
            return Unsupported(
                f"'{part.own_name}' is packed, but 'extra_config' of the declaration says that it is plain"
            )
        if packing.layout == "awq":
            return AWQLayout(run, scheme.group_size, "gemm")
        return GPTQLayout(
            run=run,
            bits=scheme.bits,
            group_size=scheme.group_size,
            sym=scheme.sym,
            desc_act=False,
            minus_one=packing.minus_one,
        )

    return choose
