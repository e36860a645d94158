"""Manifest of the `torchao` quantization method. Torch-free."""

from __future__ import annotations

from typing import Any

from core.api.reason import Reason
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_quantization.declared.arguments import DeclaredArguments
from core_quantization.declared.declares import refusals, undeclared
from core_quantization.torchao.described import AGAIN
from core_runtime.specs.checkpoint import CheckpointFacts

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin: its name, summary and arguments."""
    return PluginSpec(
        name="torchao",
        summary="checkpoints of torchao in safetensors files: integers of 1 to 8 bits, 8-bit floats, mxfp8, mxfp4, nvfp4",
        arguments=DeclaredArguments,
    )


@hookimpl
def core_supports(query: CheckpointFacts) -> list[Reason]:
    """Support only checkpoints that declare the method, in files without code."""
    if not query.declaration:
        return undeclared("torchao")
    if query.format != "safetensors":
        return [Reason("format", "safetensors (other files hold Python objects of torchao)", query.format, AGAIN)]
    from core_quantization.torchao.declaration import check_declaration

    return refusals(check_declaration, query.declaration)


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the method. Raises UserError for a declaration or arguments that are not served."""
    from core_quantization.torchao.method import torchao_method

    return torchao_method(context)
