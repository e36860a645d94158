"""Manifest of the `object_store` loader."""

from __future__ import annotations

from typing import Any

from core.api.checkpoint import CheckpointFacts, FileFacts
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_plugins.loaders.object_store.arguments import ObjectStoreArguments

CONTRACT = 1
SCHEMES = ("s3://", "gs://", "az://")


@hookimpl
def core_spec() -> PluginSpec:
    """Say what the plugin is."""
    return PluginSpec(
        name="object_store",
        summary="safetensors in a bucket: s3://bucket/model, gs://bucket/model, az://container/model",
        arguments=ObjectStoreArguments,
    )


@hookimpl
def core_claim(facts: CheckpointFacts | FileFacts) -> str | None:
    """Claim references with the scheme of a store that is known."""
    if isinstance(facts, FileFacts) and facts.ref.startswith(SCHEMES):
        return f"the reference starts with {facts.ref.partition(':')[0]}://"
    return None


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the loader."""
    from core_plugins.loaders.object_store.loader import ObjectStoreLoader

    return ObjectStoreLoader(context.arguments or ObjectStoreArguments())
