"""Manifest of the `hqq` quantization method. Torch-free."""

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
        name="hqq",
        summary="checkpoints of HQQ: integers of 1 to 4 or 8 bits in groups of inputs; groups of outputs are held plain",
        arguments=DeclaredArguments,
    )


@hookimpl
def core_supports(query: CheckpointFacts) -> list[Reason]:
    """Only checkpoints that declare it."""
    if not query.declaration:
        return undeclared("hqq")
    from core_plugins.quantization.hqq.declaration import check_declaration

    return refusals(check_declaration, query.declaration)


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the method. Raises UserError for a declaration or arguments that are not served."""
    from core_plugins.quantization.hqq.method import hqq_method

    return hqq_method(context)
