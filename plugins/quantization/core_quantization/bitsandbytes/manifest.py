"""Manifest of the `bitsandbytes` quantization method. Torch-free.

A plain checkpoint is rounded while it loads, to nf4, as other engines do under this name.
"""

from __future__ import annotations

from typing import Any

from core.api.reason import Reason
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_quantization.declared.declares import refusals
from core_quantization.online.manifest import NF4, OnlineArguments
from core_runtime.specs.checkpoint import CheckpointFacts

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin: its name, summary and arguments."""
    return PluginSpec(
        name="bitsandbytes",
        summary="checkpoints of bitsandbytes: nf4, fp4 (nested scales, too) and 8-bit integers; plain ones are rounded to nf4",
        arguments=OnlineArguments,
    )


@hookimpl
def core_supports(query: CheckpointFacts) -> list[Reason]:
    """Support checkpoints that declare the method, and plain ones."""
    if not query.declaration:
        return list(NF4.core_supports(query))
    from core_quantization.bitsandbytes.declaration import check_declaration

    return refusals(check_declaration, query.declaration)


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the method. Raises UserError for a declaration or arguments that are not served."""
    from core_quantization.bitsandbytes.declaration import check_declaration
    from core_quantization.bitsandbytes.method import bitsandbytes_method
    from core_quantization.declared.part_format import Run

    manifest = context.manifest
    facts = None if manifest is None else manifest.facts()
    if manifest is None or facts is None or not facts.declaration:
        return NF4.core_load(context)
    check_declaration(facts.declaration)
    arguments = context.arguments or OnlineArguments()
    NF4.refuse_online(arguments)
    return bitsandbytes_method(manifest, Run.of(arguments.activation, context))
