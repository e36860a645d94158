"""What the `cublas` kernels serve, and the name of their arithmetic. Torch-free.

Owns: these limits, and the reasons that follow from them. Never does: multiply. Called by: the manifests, the kernels.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Final

from core.api.reason import Reason
from core.api.specs import KernelQuery
from core_kernels.triton.limits import numerics_name

VERSION: Final = 1  # raise when results change
DEVICES: Final = ("cuda",)
OPERATIONS: Final = ("linear", "grouped_experts", "heads")
FORMATS: Final = ("float32", "float16", "bfloat16")
ACTIVATIONS: Final = ("none", "bf16")
FEW_ROWS: Final = 64
"""Up to this many rows a product reads its weight once, and the engine's own kernels do that as fast."""


def lacking(query: KernelQuery, devices: Sequence[str] = DEVICES) -> list[Reason]:
    """Return the reasons why an operation is not supported; empty means supported."""
    reasons = []
    if find_spec("triton") is None:
        reasons.append(Reason("triton", "installed", "not installed; run pip install triton"))
    device = query.device.partition(":")[0]
    if device not in devices:
        reasons.append(Reason("device", " or ".join(devices), device))
    if query.op not in OPERATIONS:
        reasons.append(Reason("op", ", ".join(OPERATIONS), query.op))
    if query.format and query.format not in FORMATS:
        reasons.append(Reason("format", ", ".join(FORMATS), query.format))
    if query.activation not in ACTIVATIONS:
        reasons.append(Reason("activation", " or ".join(ACTIVATIONS), query.activation))
    return reasons


def lacking_chip(query: KernelQuery, chips: Sequence[str]) -> list[Reason]:
    """Return the reason against a chip of NVIDIA that is not among these; an unknown one is not refused."""
    profile = str(query.attributes.get("profile", ""))
    if not profile.startswith("sm_") or profile in chips:
        return []
    return [Reason("device", ", ".join(chips), profile)]


def numerics(name: str) -> str:
    """Return the versions of everything that results depend on: this provider's, torch's with its CUDA, Triton's."""
    return f"{name}-{VERSION}:{importlib.metadata.version('torch')}:{numerics_name()}"
