"""The method of AWQ checkpoints: which module is packed.

Owns: this choice. Never does: unpack. Called by: the manifest.
"""

from __future__ import annotations

from core_quantization.awq.declaration import Declaration
from core_quantization.awq.layout import AWQLayout
from core_quantization.declared.held import Run
from core_quantization.declared.method import Choose
from core_quantization.declared.part import StoredPart

PACKED = "qweight"
"""A module with this tensor is packed, whatever the declaration's lists of modules say."""


def awq_layouts(declaration: Declaration, run: Run) -> Choose:
    """Choose by the declaration. run: what the user wants."""
    layout = AWQLayout(run, declaration.group_size, declaration.version)

    def choose(part: StoredPart) -> AWQLayout | None:
        return layout if PACKED in part.tensors else None

    return choose
