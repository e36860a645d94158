"""Manifest of the `inductor` kernels. Torch-free.

Owns: the capabilities that the kernels declare before they are loaded. Called by: `core.plugin`.
"""

from __future__ import annotations

import importlib.metadata
from typing import Annotated

import msgspec

from core.api.reason import Reason
from core.api.specs import KernelQuery
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_kernels.inductor.limits import DEVICES, OPERATIONS, lacking
from core_runtime.contracts import Kernels

CONTRACT = 1


class InductorArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The provider's own arguments."""

    debug_dump: Annotated[
        str | None,
        msgspec.Meta(
            description="directory in which torch writes what it makes of each operation; as "
            "--compilation-config.debug_dump_path"
        ),
    ] = None


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin; `auto` does not select it."""
    return PluginSpec(
        name="inductor",
        summary="norms, gates and rotary embedding of the reference, compiled by torch in the background; when named",
        arguments=InductorArguments,
        capabilities={
            "devices": list(DEVICES),
            "only_named": True,
            "operations": list(OPERATIONS),
            "dumps_on_request": True,
        },
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
    arguments = context.arguments or InductorArguments()
    device = context.device.replace("rocm", "cuda")
    return CompiledKernels(Compiler(device, cache_dir=cache_dir, debug_dir=arguments.debug_dump or ""))
