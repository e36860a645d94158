"""Manifest of the `scaled_mm` kernels. Torch-free.

Owns: the capabilities that the kernels declare before they are loaded. Called by: `core.plugin`.
"""

from __future__ import annotations

from core.api.reason import Reason
from core.api.specs import KernelQuery
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_kernels.cublas.limits import FEW_ROWS
from core_kernels.scaled.limits import DEVICES, FORMAT, VARIES, lacking_rows, numerics
from core_runtime.contracts import Kernels

CONTRACT = 1
NAME = "scaled_mm"


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin. It does not declare `batch_invariant`: how many rows there are decides who sums."""
    return PluginSpec(
        name=NAME,
        summary=f"fp8 products of more than {FEW_ROWS} rows by torch, with inputs in fp8, for weights with one scale a row",
        capabilities={
            "devices": list(DEVICES),
            "formats": [FORMAT],
            "operations": ["linear"],
            "varies": VARIES,
        },
        priority=105,
    )


@hookimpl
def core_supports(query: KernelQuery) -> list[Reason]:
    """Require an NVIDIA device and a weight that fits the library."""
    return lacking_rows(query)


@hookimpl
def core_numerics() -> str:
    """Return the version of the arithmetic, of the library and of Triton."""
    return numerics(NAME, "torch")


@hookimpl
def core_load(context: LoadContext) -> Kernels:
    """Build the kernels. Raises UserError for an unreadable table of tiles."""
    from core_kernels.cublas.few import facts_of, triton_kernels
    from core_kernels.scaled.kernels import ScaledKernels
    from core_kernels.scaled.linear import RowScaled

    few = triton_kernels(context)
    return ScaledKernels(NAME, core_numerics(), few, RowScaled, lacking_rows, facts_of(context))
