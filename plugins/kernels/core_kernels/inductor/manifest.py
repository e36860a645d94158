"""Manifest of the `inductor` kernels. Torch-free.

Owns: the capabilities that the kernels declare before they are loaded. Called by: `core.plugin`.
"""

from __future__ import annotations

import importlib.metadata

from core.api.reason import Reason
from core.api.specs import KernelQuery
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_kernels.inductor.limits import DEVICES, OPERATIONS, lacking
from core_runtime.contracts import Kernels

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin; `auto` does not select it."""
    return PluginSpec(
        name="inductor",
        summary="norms, gates and rotary embedding of the reference, compiled by torch in the background; when named",
        capabilities={"devices": list(DEVICES), "only_named": True, "operations": list(OPERATIONS)},
        priority=10,
    )


@hookimpl
def core_supports(query: KernelQuery) -> list[Reason]:
    """Accept the operations between matrix products and attention."""
    return lacking(query)


@hookimpl
def core_numerics() -> str:
    """Return the reference's name: operations with other bits are not used."""
    return f"torch-{importlib.metadata.version('torch').partition('+')[0]}"


@hookimpl
def core_load(context: LoadContext) -> Kernels:
    """Build the kernels. Their calls determine what is compiled."""
    from core_kernels.inductor.compiler import Compiler
    from core_kernels.inductor.kernels import CompiledKernels

    cache_dir = "" if context.config is None else context.config.compilation.cache_dir
    return CompiledKernels(Compiler(context.device.replace("rocm", "cuda"), cache_dir=cache_dir))
