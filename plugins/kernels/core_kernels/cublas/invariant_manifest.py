"""Manifest of the `cublas_invariant` kernels. Torch-free.

Owns: the capabilities that the kernels declare before they are loaded. Called by: `core.plugin`.
"""

from __future__ import annotations

from core.api.reason import Reason
from core.api.specs import KernelQuery
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_kernels.cublas.limits import DEVICES, FORMATS, OPERATIONS, lacking, numerics
from core_runtime.contracts import Kernels

CONTRACT = 1
NAME = "cublas_invariant"


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin; `auto` does not select it."""
    return PluginSpec(
        name=NAME,
        summary="dense products of any number of rows by cuBLAS without split-K, on sm_90 and newer; when named",
        capabilities={
            "devices": list(DEVICES),
            "formats": list(FORMATS),
            "operations": list(OPERATIONS),
            "batch_invariant": True,
            "only_named": True,
        },
        priority=20,
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
    """Build the kernels. Raises UserError for a device older than sm_90, and for an unreadable table of tiles."""
    from core_kernels.cublas.few import triton_kernels
    from core_kernels.cublas.invariant import InvariantKernels, forbid_split_k

    forbid_split_k(context.device)
    return InvariantKernels(triton_kernels(context), NAME, most=0)
