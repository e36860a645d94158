"""Manifest of the `quark` quantization method. Torch-free."""

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
        name="quark",
        summary="checkpoints of AMD Quark: integers of 4 and 8 bits, fp8, mxfp4",
        arguments=DeclaredArguments,
    )


@hookimpl
def core_supports(query: CheckpointFacts) -> list[Reason]:
    """Say what of the declaration is not served."""
    if not query.declaration:
        return undeclared("quark")
    from core_plugins.quantization.quark.declaration import read_declaration

    return refusals(read_declaration, query.declaration)


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the method. Raises UserError without a checkpoint, Refusal for a declaration that is not served."""
    from core_plugins.quantization.declared.held import Run
    from core_plugins.quantization.declared.method import DeclaredMethod
    from core_plugins.quantization.quark.declaration import read_declaration
    from core_plugins.quantization.quark.layouts import Choice

    manifest = declaring(context, "quark")
    arguments = context.arguments or DeclaredArguments()
    declaration = read_declaration(manifest.facts().declaration)
    choice = Choice(declaration, Run.of(arguments.activation, context))
    return DeclaredMethod(manifest, choice)
