"""Questions that show whether a provider of kernels works at all.

Owns: the operations asked about. Never does: choose a provider. Called by: the list of plugins, the selection of kernels.
"""

from __future__ import annotations

from typing import Final

from core.api.reason import Reason
from core.api.specs import KernelQuery
from core.plugin.manifest import Manifest
from core.plugin.rehearsal import Call

KERNEL_OPERATIONS: Final = (
    *("rms_norm", "linear", "grouped_experts", "rms_norm_heads"),
    *("rotary", "gated", "add", "scale", "race"),
)
KERNEL_CALLS: Final = tuple(Call.of("core_supports", query=KernelQuery(op, "cpu")) for op in KERNEL_OPERATIONS)
"""The operations that a provider is asked about; one that serves none of these is no candidate."""


def kernel_reasons(manifest: Manifest, device: str) -> list[Reason]:
    """Why a provider serves no operation at all on a device type; empty when it serves one. Raises CoreError."""
    refused: list[Reason] = []
    for op in KERNEL_OPERATIONS:
        reasons = list(manifest.call("core_supports", query=KernelQuery(op, device)))
        if not reasons:
            return []
        refused = refused or reasons
    return refused
