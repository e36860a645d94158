"""The arguments of the `tensorizer` loader.

Owns: their declarations. Never does: import the library. Called by: the manifest, the loader.
"""

from __future__ import annotations

from typing import Annotated

import msgspec


class TensorizerArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys of `--model-loader-extra-config` for this loader."""

    tensorizer_uri: Annotated[
        str | None, msgspec.Meta(description="Path of the file. Unset: the one *.tensors file beside config.json.")
    ] = None
    num_readers: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=256)] | None,
        msgspec.Meta(description="Threads that read. Unset: the library chooses."),
    ] = None
    verify_hash: Annotated[bool, msgspec.Meta(description="Check each tensor's hash, where the file has any.")] = False
