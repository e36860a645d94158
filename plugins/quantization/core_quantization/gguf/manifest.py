"""Manifest of the `gguf` quantization method."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from core.api.errors import UserError
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_runtime.specs.checkpoint import CheckpointFacts, FileFacts

CONTRACT = 1


class GGUFArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The user's arguments of the method."""

    activation: Annotated[
        Literal["auto", "none", "int8"],
        msgspec.Meta(
            description="Precision to which inputs of packed layers are rounded; auto: int8, or none on a GPU and "
            "when the dtype is float32."
        ),
    ] = "auto"


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin: its name, summary and arguments."""
    return PluginSpec(
        name="gguf",
        summary="GGUF block types, held packed: Q4_0 to Q8_0, K types, IQ1 to IQ4, TQ, MXFP4, NVFP4, and plain floats",
        arguments=GGUFArguments,
    )


@hookimpl
def core_claim(facts: CheckpointFacts | FileFacts) -> str | None:
    """Claim every GGUF checkpoint."""
    return "the checkpoint is a GGUF file" if isinstance(facts, CheckpointFacts) and facts.format == "gguf" else None


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the method. Raises UserError without a GGUF checkpoint."""
    from core_quantization.gguf.method import GGUFMethod

    if context.manifest is None or context.manifest.format != "gguf":
        given = "no checkpoint" if context.manifest is None else f"a {context.manifest.format} checkpoint"
        raise UserError(f"quantization 'gguf' was given {given}; it needs a GGUF file. Leave --quantization out.")
    arguments = context.arguments or GGUFArguments()
    activation = arguments.activation
    if activation == "auto":
        gains = context.dtype != "float32" and "int8" in context.roundings
        activation = "int8" if gains else "none"
    return GGUFMethod(context.manifest, activation)
