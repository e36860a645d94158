"""Manifest of the `object_store` loader."""

from __future__ import annotations

from typing import Annotated

import msgspec

from core.api.checkpoint import CheckpointFacts, FileFacts
from core.plugin.hookspecs import hookimpl
from core.plugin.manifest_of import manifest_of

CONTRACT = 1
SCHEMES = ("s3://", "gs://", "az://")


class ObjectStoreArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments under `--model-loader-extra-config`. Credentials come from wherever the store's own client finds them."""

    concurrency: Annotated[int, msgspec.Meta(ge=1, le=256, description="Requests in flight.")] = 16
    part_bytes: Annotated[int, msgspec.Meta(ge=4096, description="Most bytes of one request.")] = 8 << 20
    memory_limit: Annotated[
        int, msgspec.Meta(ge=1, description="Bytes of tensors in memory at once; one that is larger comes alone.")
    ] = 512 << 20
    endpoint: Annotated[
        str | None,
        msgspec.Meta(description="Address of the store. Unset: the provider's own; needed for az (the account's URL)."),
    ] = None
    cache: Annotated[
        str | None, msgspec.Meta(description="Directory of configuration and tokenizer files. Unset: ~/.cache/core.")
    ] = None


core_spec, core_load = manifest_of(
    "object_store",
    "safetensors in a bucket: s3://bucket/model, gs://bucket/model, az://container/model",
    "core_plugins.loaders.object_store.loader:ObjectStoreLoader",
    arguments=ObjectStoreArguments,
)


@hookimpl
def core_claim(facts: CheckpointFacts | FileFacts) -> str | None:
    """Claim references with the scheme of a store that is known."""
    if isinstance(facts, FileFacts) and facts.ref.startswith(SCHEMES):
        return f"the reference starts with {facts.ref.partition(':')[0]}://"
    return None
