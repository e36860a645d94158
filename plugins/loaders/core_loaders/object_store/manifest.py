"""Manifest of the `object_store` loader."""

from __future__ import annotations

from core.plugin.hookspecs import hookimpl
from core.plugin.manifest_of import manifest_of
from core_loaders.object_store.arguments import ObjectStoreArguments
from core_runtime.specs.checkpoint import CheckpointFacts, FileFacts

CONTRACT = 1
SCHEMES = ("s3://", "gs://", "az://")


core_spec, core_load = manifest_of(
    "object_store",
    "safetensors in a bucket: s3://bucket/model, gs://bucket/model, az://container/model",
    "core_loaders.object_store.loader:ObjectStoreLoader",
    arguments=ObjectStoreArguments,
)


@hookimpl
def core_claim(facts: CheckpointFacts | FileFacts) -> str | None:
    """Claim references with the scheme of a known store."""
    if isinstance(facts, FileFacts) and facts.ref.startswith(SCHEMES):
        return f"the reference starts with {facts.ref.partition(':')[0]}://"
    return None
