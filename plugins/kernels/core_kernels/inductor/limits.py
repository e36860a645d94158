"""The operations and devices that the `inductor` kernels serve. Torch-free.

Owns: these limits, and the reasons that follow from them. Never does: compile. Called by: the manifest, the kernels.
"""

from __future__ import annotations

from core.api.reason import Reason
from core.api.specs import KernelQuery

OPERATIONS = ("rms_norm", "gated", "rotary")
DEVICES = ("cpu", "cuda", "rocm", "xpu")


def lacking(query: KernelQuery) -> list[Reason]:
    """Return the reasons why an operation is not supported; empty means supported."""
    reasons = []
    device = query.device.partition(":")[0]
    if device not in DEVICES:
        reasons.append(Reason("device", " or ".join(DEVICES), device))
    if query.op not in OPERATIONS:
        reasons.append(Reason("op", ", ".join(OPERATIONS), query.op))
    return reasons
