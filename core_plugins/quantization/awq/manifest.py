"""Manifest of the `awq` quantization method. Torch-free."""

from __future__ import annotations

from typing import Any

from core.api.checkpoint import CheckpointFacts
from core.api.reason import Reason
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_plugins.quantization.declared.arguments import DeclaredArguments
from core_plugins.quantization.declared.declares import refusals, undeclared

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Say what the plugin is."""
    return PluginSpec(
        name="awq",
        summary="checkpoints of AWQ: 4-bit integers in groups with zero points, layouts gemm and gemv",
        arguments=DeclaredArguments,
    )


@hookimpl
def core_supports(query: CheckpointFacts) -> list[Reason]:
    """Only checkpoints that declare it."""
    if not query.declaration:
        return undeclared("awq")
    from core_plugins.quantization.awq.declaration import Declaration

    return refusals(Declaration.read, query.declaration)


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the method. Raises UserError for a declaration or arguments that are not served."""
    from core_plugins.quantization.awq.method import awq_method

    return awq_method(context)
