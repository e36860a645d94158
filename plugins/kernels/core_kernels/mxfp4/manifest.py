"""Manifest of the `triton_kernels` kernels. Torch-free.

Owns: the capabilities that the kernels declare before they are loaded. Called by: `core.plugin`.
"""

from __future__ import annotations

from core.api.reason import Reason
from core.api.specs import KernelQuery
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_kernels.mxfp4.limits import DEVICES, FORMAT, LIBRARY, OPERATION, lacking, numerics
from core_runtime.contracts import Kernels

CONTRACT = 1
NAME = LIBRARY


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin. It does not declare `batch_invariant`: the library divides sums as the batch leaves room."""
    return PluginSpec(
        name=NAME,
        summary="experts in MXFP4 by OpenAI's triton_kernels, where installed, on sm_90 and sm_100",
        capabilities={
            "devices": list(DEVICES),
            "formats": [FORMAT],
            "operations": [OPERATION],
            "varies": "in experts in MXFP4, by their rows",
        },
        priority=106,
    )


@hookimpl
def core_supports(query: KernelQuery) -> list[Reason]:
    """Require an NVIDIA device and the library with the interface of 3.5."""
    return lacking(query)


@hookimpl
def core_numerics() -> str:
    """Return the version of the arithmetic, of the library and of Triton."""
    return numerics()


@hookimpl
def core_load(context: LoadContext) -> Kernels:
    """Build the kernels."""
    from core_kernels.cublas.few import facts_of
    from core_kernels.mxfp4.kernels import LibraryKernels

    return LibraryKernels(facts_of(context))
