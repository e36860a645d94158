"""Manifest of the `gptq` quantization method. Torch-free."""

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
        name="gptq",
        summary="checkpoints of GPTQ: integers of 2, 3, 4 or 8 bits in groups, with act-order",
        arguments=DeclaredArguments,
    )


@hookimpl
def core_supports(query: CheckpointFacts) -> list[Reason]:
    """Only checkpoints that declare it."""
    if not query.declaration:
        return undeclared("gptq")
    from core_plugins.quantization.gptq.declaration import Declaration

    return refusals(Declaration.read, query.declaration)


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the method. Raises UserError for a declaration or arguments that are not served."""
    from core_plugins.quantization.gptq.method import gptq_method

    return gptq_method(context)
