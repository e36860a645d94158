"""Manifest of the `packed` loader."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_runtime.models.tensors.prepared import DATA, INDEX
from core_runtime.specs.checkpoint import CheckpointFacts, FileFacts

CONTRACT = 1


class PackedArguments(msgspec.Struct, frozen=True):
    """The loader's own arguments."""

    map: Annotated[
        bool,
        msgspec.Meta(
            description="Compute with the file's own pages, which the start does not copy and processes share. Off: the file "
            "is read into memory, in huge pages also where the system maps files in small ones."
        ),
    ] = True


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin."""
    return PluginSpec(
        name="packed",
        summary="directories that core convert wrote: kernels that need no packing",
        arguments=PackedArguments,
    )


@hookimpl
def core_claim(facts: CheckpointFacts | FileFacts) -> str | None:
    """Claim directories with an index of prepared kernels."""
    if not isinstance(facts, FileFacts) or not facts.is_directory or INDEX not in facts.names:
        return None
    return f"the directory holds {INDEX} and {DATA}"


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the loader."""
    from core_loaders.packed.loader import PackedLoader

    arguments = context.arguments or PackedArguments()
    return PackedLoader(mapped=arguments.map)
