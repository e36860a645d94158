"""Manifest of the `cublas` kernels. Torch-free.

Owns: the capabilities that the kernels declare before they are loaded. Called by: `core.plugin`.
"""

from __future__ import annotations

from core.api.reason import Reason
from core.api.specs import KernelQuery
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_kernels.cublas.limits import DEVICES, FEW_ROWS, FORMATS, OPERATIONS, lacking, numerics
from core_runtime.contracts import Kernels

CONTRACT = 1
NAME = "cublas"


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin. It does not declare `batch_invariant`: how many rows there are decides who sums."""
    return PluginSpec(
        name=NAME,
        summary=f"dense products of more than {FEW_ROWS} rows by cuBLAS, those of fewer by Triton",
        capabilities={
            "devices": list(DEVICES),
            "formats": list(FORMATS),
            "operations": list(OPERATIONS),
            "varies": f"above {FEW_ROWS} rows",
        },
        priority=110,
    )


@hookimpl
def core_supports(query: KernelQuery) -> list[Reason]:
    """Require an NVIDIA device and an installed Triton."""
    return lacking(query)


@hookimpl
def core_numerics() -> str:
    """Return the version of the arithmetic, of torch and of Triton."""
    return numerics(NAME)


@hookimpl
def core_load(context: LoadContext) -> Kernels:
    """Build the kernels. Raises UserError for an unreadable table of tiles."""
    from core_kernels.cublas.few import triton_kernels
    from core_kernels.cublas.kernels import CublasKernels

    return CublasKernels(triton_kernels(context), NAME)
