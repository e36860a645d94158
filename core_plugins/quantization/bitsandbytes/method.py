"""The method of bitsandbytes checkpoints: which module has which layout.

Owns: this choice. Never does: unpack. Called by: the manifest.
"""

from __future__ import annotations

from core.api.checkpoint import CheckpointManifest
from core_plugins.quantization.bitsandbytes.layouts import KINDS, STATE, EightBits, FourBits
from core_plugins.quantization.declared.held import Run
from core_plugins.quantization.declared.layout import Layout
from core_plugins.quantization.declared.method import DeclaredMethod
from core_plugins.quantization.declared.part import StoredPart


def bitsandbytes_method(manifest: CheckpointManifest, run: Run) -> DeclaredMethod:
    """The method of a checkpoint whose declaration is served."""

    def choose(part: StoredPart) -> Layout | None:
        for kind in KINDS:
            if STATE + kind in part.tensors:
                return FourBits(run, kind)
        return EightBits(run) if "SCB" in part.tensors else None

    return DeclaredMethod(manifest, choose)
