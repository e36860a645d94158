"""The method of AQLM checkpoints: the choice of packed modules.

Owns: this choice. Never does: unpack. Called by: the manifest.
"""

from __future__ import annotations

from core_quantization.aqlm.declaration import Codebooks
from core_quantization.aqlm.layout import CODES, AQLMLayout
from core_quantization.declared.method import Choose
from core_quantization.declared.part import StoredPart
from core_quantization.declared.part_format import Run


def aqlm_layouts(books: Codebooks, run: Run) -> Choose:
    """Return a choice of the one layout. books: sizes in the declaration. run: settings of all packed layers."""
    layout = AQLMLayout(books, run)

    def choose(part: StoredPart) -> AQLMLayout | None:
        return layout if CODES in part.tensors else None

    return choose
