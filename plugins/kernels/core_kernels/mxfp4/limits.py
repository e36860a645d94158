"""What the provider `triton_kernels` serves, and the name of its arithmetic. Torch-free.

Owns: these limits, and which package of that name is the library. Never does: import it. Called by: the manifest, the
kernels.
"""

from __future__ import annotations

import importlib.metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from core.api.reason import Reason
from core.api.specs import KernelQuery
from core_kernels.cublas.limits import lacking_chip
from core_kernels.triton.limits import numerics_name

VERSION: Final = 1  # raise when results change
LIBRARY: Final = "triton_kernels"
DEVICES: Final = ("cuda",)
FORMAT: Final = "mxfp4"
OPERATION: Final = "grouped_experts"
ACTIVATIONS: Final = ("none", "bf16")
PERSISTENT: Final = ("sm_100", "sm_103")
CHIPS: Final = ("sm_90", *PERSISTENT)
UNIT: Final = 64
"""Sizes of both sides are multiples of this."""
MODULES: Final = ("matmul_ogs", "routing", "swiglu", "tensor", "numerics")
HINT: Final = (
    "pip install 'git+https://github.com/triton-lang/triton@v3.5.0#subdirectory=python/triton_kernels'; "
    "the package of that name on PyPI is another one"
)


def lacking(query: KernelQuery) -> list[Reason]:
    """Return the reasons why an operation is not supported; empty means supported."""
    reasons = []
    if find_spec("triton") is None:
        reasons.append(Reason("triton", "installed", "not installed; run pip install triton"))
    reasons += lacking_library() + lacking_chip(query, CHIPS)
    device = query.device.partition(":")[0]
    if device not in DEVICES:
        reasons.append(Reason("device", " or ".join(DEVICES), device))
    if query.op != OPERATION:
        reasons.append(Reason("op", OPERATION, query.op))
    if query.format and query.format != FORMAT:
        reasons.append(Reason("format", FORMAT, query.format))
    if query.activation not in ACTIVATIONS:
        reasons.append(Reason("activation", " or ".join(ACTIVATIONS), query.activation))
    if query.activation == "none" and query.attributes.get("dtype") == "float32":
        reasons.append(Reason("dtype", "inputs in bfloat16 or float16", "float32", "--dtype bfloat16"))
    if any(size % UNIT for size in query.shape[1:]):
        reasons.append(Reason("shape", f"multiples of {UNIT}", str(query.shape)))
    return reasons


def lacking_library() -> list[Reason]:
    """Return why there is no library of the interface of 3.5: absent, another package of its name, another version."""
    found = find_spec(LIBRARY)
    if found is None:
        return [Reason("missing_library", LIBRARY, "not installed", HINT)]
    folders = [Path(folder) for folder in found.submodule_search_locations or ()]
    absent = [name for name in MODULES if not any((folder / f"{name}.py").exists() for folder in folders)]
    if not absent:
        return []
    if len(absent) == len(MODULES):
        return [Reason("missing_library", f"{LIBRARY} of triton-lang/triton", "another package of that name", HINT)]
    got = f"version {_version()}, without {', '.join(absent)}"
    return [Reason("missing_library", f"{LIBRARY} 3.5", got, HINT)]


def numerics() -> str:
    """Return the versions of everything that results depend on: this provider's, the library's, Triton's."""
    return f"{LIBRARY}-{VERSION}:{_version()}:{numerics_name()}"


def _version() -> str:
    """Return the version of the library."""
    try:
        return importlib.metadata.version(LIBRARY)
    except importlib.metadata.PackageNotFoundError:  # not there, or used from its source
        return "unknown"
