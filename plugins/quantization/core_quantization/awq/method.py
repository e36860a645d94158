"""The method of AWQ checkpoints: the choice of packed modules.

Owns: this choice. Never does: unpack. Called by: the manifest.
"""

from __future__ import annotations

from core_quantization.awq.declaration import Declaration
from core_quantization.awq.layout import AWQLayout
from core_quantization.declared.method import Choose
from core_quantization.declared.part import StoredPart
from core_quantization.declared.part_format import Run

PACKED = "qweight"
"""A module with this tensor is packed, regardless of the declaration's lists of modules."""


def awq_layouts(declaration: Declaration, run: Run) -> Choose:
    """Return the choice of layouts by the declaration. run: settings of all packed layers."""
    layout = AWQLayout(run, declaration.group_size, declaration.version)

    def choose(part: StoredPart) -> AWQLayout | None:
        return layout if PACKED in part.tensors else None

    return choose
