"""What the providers `scaled_mm` and `deep_gemm` serve, and the names of their arithmetic. Torch-free.

Owns: these limits, and the reasons that follow from them. Never does: multiply. Called by: the manifests, the kernels.
"""

from __future__ import annotations

import importlib.metadata
from importlib.util import find_spec
from typing import Final

from core.api.reason import Reason
from core.api.specs import KernelQuery
from core_kernels.cublas.limits import FEW_ROWS, lacking_chip
from core_kernels.triton.limits import numerics_name

VERSION: Final = 1  # raise when results change
DEVICES: Final = ("cuda",)
FORMAT: Final = "fp8_e4m3"
ACTIVATION: Final[str] = "fp8_row"
"""Inputs in e4m3 with a scale for each row; without it, inputs keep their type and Triton multiplies."""
BLOCK: Final = 128
"""Rows and inputs that share a scale in weights that DeepGEMM multiplies."""
CHIPS: Final = ("sm_89", "sm_90", "sm_100", "sm_103", "sm_110", "sm_120", "sm_121")
"""Chips for which torch has products of 8-bit floats with a scale for each row."""
CHIPS_OF_BLOCKS: Final = ("sm_90", "sm_100", "sm_103")
"""Chips for which DeepGEMM is written."""
VARIES: Final = f"above {FEW_ROWS} rows"


def lacking(query: KernelQuery) -> list[Reason]:
    """Return the reasons why a product is not supported by either provider; empty means supported."""
    reasons = []
    if find_spec("triton") is None:
        reasons.append(Reason("triton", "installed", "not installed; run pip install triton"))
    device = query.device.partition(":")[0]
    if device not in DEVICES:
        reasons.append(Reason("device", " or ".join(DEVICES), device))
    if query.op != "linear":
        reasons.append(Reason("op", "linear", query.op))
    if query.format and query.format != FORMAT:
        reasons.append(Reason("format", FORMAT, query.format))
    if query.format and query.activation != ACTIVATION:
        reasons.append(Reason("activation", ACTIVATION, query.activation))
    return reasons


def lacking_rows(query: KernelQuery) -> list[Reason]:
    """Return the reasons against `scaled_mm`: it takes weights with one scale a row, of whole units of 16."""
    reasons = lacking(query) + lacking_chip(query, CHIPS)
    group_size = int(query.attributes.get("group_size", 0))
    if query.shape and group_size < query.shape[-1]:
        reasons.append(Reason("group_size", "one scale a row", str(group_size)))
    if any(size % 16 for size in query.shape):
        reasons.append(Reason("shape", "multiples of 16", str(query.shape)))
    return reasons


def lacking_blocks(query: KernelQuery) -> list[Reason]:
    """Return the reasons against `deep_gemm`: it takes weights with a scale for each block of 128 x 128."""
    reasons = lacking(query) + lacking_chip(query, CHIPS_OF_BLOCKS)
    if find_spec("deep_gemm") is None:
        hint = "pip install git+https://github.com/deepseek-ai/DeepGEMM"
        reasons.append(Reason("missing_library", "deep_gemm", "not installed", hint))
    group_size = int(query.attributes.get("group_size", 0))
    if query.shape and group_size != BLOCK:
        reasons.append(Reason("group_size", str(BLOCK), str(group_size)))
    if query.shape and (query.shape[0] % (BLOCK // 2) or query.shape[1] % BLOCK):
        reasons.append(Reason("shape", f"outputs of whole {BLOCK // 2} and inputs of whole {BLOCK}", str(query.shape)))
    return reasons


def numerics(name: str, package: str) -> str:
    """Return the versions of everything that results depend on: this provider's, the library's, Triton's."""
    try:
        library = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # not there, or built in place
        library = "unknown"
    return f"{name}-{VERSION}:{library}:{numerics_name()}"
