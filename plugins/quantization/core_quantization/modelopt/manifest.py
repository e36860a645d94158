"""Manifest of the `modelopt` quantization method. Torch-free."""

from __future__ import annotations

from typing import Any

from core.api.reason import Reason
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core.plugin.kinds import normalize
from core_quantization.declared.arguments import DeclaredArguments
from core_runtime.specs.checkpoint import CheckpointFacts

CONTRACT = 1
DECLARED = frozenset({"modelopt", "modelopt_fp4", "modelopt_mixed", "petit_nvfp4"})
"""Names of this method in checkpoints' declarations."""


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin: its name, summary and arguments."""
    return PluginSpec(
        name="modelopt",
        summary="checkpoints of NVIDIA ModelOpt: 8-bit floats (tensor, row, block), nvfp4, mxfp4, mxfp8, int8",
        arguments=DeclaredArguments,
    )


@hookimpl
def core_supports(query: CheckpointFacts) -> list[Reason]:
    """Support only checkpoints that declare the method."""
    if query.quantization is not None and normalize(query.quantization) in DECLARED:
        return []
    return [Reason("checkpoint", "a declaration of modelopt", str(query.quantization), "leave --quantization out")]


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the method. Raises UserError for an algorithm or a key that is not served."""
    from core_quantization.modelopt.method import modelopt_method

    arguments = context.arguments or DeclaredArguments()
    return modelopt_method(context, arguments.activation)
