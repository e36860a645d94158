"""The arguments of the `object_store` loader.

Owns: their declarations. Never does: import the library. Called by: the manifest, the loader.
"""

from __future__ import annotations

from typing import Annotated

import msgspec


class ObjectStoreArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys of `--model-loader-extra-config` for this loader. Credentials are looked up by the store's own client."""

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
