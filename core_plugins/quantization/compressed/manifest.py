"""Manifest of the `compressed-tensors` quantization method. Torch-free."""

from __future__ import annotations

from typing import Any

from core.api.checkpoint import CheckpointFacts
from core.api.reason import Reason
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_plugins.quantization.declared.arguments import DeclaredArguments
from core_plugins.quantization.declared.declares import declaring, refusals, undeclared

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Say what the plugin is."""
    return PluginSpec(
        name="compressed-tensors",
        summary="checkpoints of llm-compressor: integers of 1 to 8 bits, fp8, mxfp4, nvfp4, sparse matrices",
        arguments=DeclaredArguments,
    )


@hookimpl
def core_supports(query: CheckpointFacts) -> list[Reason]:
    """Say what of the declaration is not served."""
    if not query.declaration:
        return undeclared("compressed-tensors")
    from core_plugins.quantization.compressed.declaration import read_groups

    return refusals(read_groups, query.declaration)


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the method. Raises UserError without a checkpoint, Refusal for a declaration that is not served."""
    from core_plugins.quantization.compressed.declaration import read_groups
    from core_plugins.quantization.compressed.layouts import Choice
    from core_plugins.quantization.declared.held import Run
    from core_plugins.quantization.declared.method import DeclaredMethod

    manifest = declaring(context, "compressed-tensors")
    arguments = context.arguments or DeclaredArguments()
    groups = read_groups(manifest.facts().declaration)
    choice = Choice(groups, Run.of(arguments.activation, context))
    return DeclaredMethod(manifest, choice)
