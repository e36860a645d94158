"""The method of HQQ checkpoints: which module has the layout.

Owns: this choice. Never does: unpack. Called by: the manifest.
"""

from __future__ import annotations

from core_quantization.declared.held import Run
from core_quantization.declared.method import Choose
from core_quantization.declared.part import StoredPart
from core_quantization.hqq.layout import PACKED, HQQLayout


def hqq_layouts(_: object, run: Run) -> Choose:
    """Choose the one layout; nothing in a declaration changes it. run: what the user wants."""
    layout = HQQLayout(run)

    def choose(part: StoredPart) -> HQQLayout | None:
        return layout if PACKED in part.tensors else None

    return choose
