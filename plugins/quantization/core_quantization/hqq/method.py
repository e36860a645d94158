"""The method of HQQ checkpoints: the choice of packed modules.

Owns: this choice. Never does: unpack. Called by: the manifest.
"""

from __future__ import annotations

from core_quantization.declared.method import Choose
from core_quantization.declared.part import StoredPart
from core_quantization.declared.part_format import Run
from core_quantization.hqq.layout import PACKED, HQQLayout


def hqq_layouts(_: object, run: Run) -> Choose:
    """Return a choice of the one layout. Nothing in a declaration changes it. run: settings of all packed layers."""
    layout = HQQLayout(run)

    def choose(part: StoredPart) -> HQQLayout | None:
        return layout if PACKED in part.tensors else None

    return choose
