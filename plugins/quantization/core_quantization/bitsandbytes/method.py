"""The method of bitsandbytes checkpoints: the choice of a layout for each module.

Owns: this choice. Never does: unpack. Called by: the manifest.
"""

from __future__ import annotations

from core_quantization.bitsandbytes.layouts import KINDS, STATE, EightBits, FourBits
from core_quantization.declared.layout import Layout
from core_quantization.declared.method import DeclaredMethod
from core_quantization.declared.part import StoredPart
from core_quantization.declared.part_format import Run
from core_runtime.specs.checkpoint import CheckpointManifest


def bitsandbytes_method(manifest: CheckpointManifest, run: Run) -> DeclaredMethod:
    """Return the method of a checkpoint whose declaration is supported."""

    def choose(part: StoredPart) -> Layout | None:
        for kind in KINDS:
            if STATE + kind in part.tensors:
                return FourBits(run, kind)
        return EightBits(run) if "SCB" in part.tensors else None

    return DeclaredMethod(manifest, choose)
