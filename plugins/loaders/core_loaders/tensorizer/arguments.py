"""The arguments of the `tensorizer` loader.

Owns: them. Never does: import the library. Called by: the manifest, the loader.
"""

from __future__ import annotations

from typing import Annotated

import msgspec


class TensorizerArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments under `--model-loader-extra-config`."""

    tensorizer_uri: Annotated[
        str | None, msgspec.Meta(description="Path of the file. Unset: the one *.tensors file beside config.json.")
    ] = None
    num_readers: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=256)] | None,
        msgspec.Meta(description="Threads that read. Unset: the library chooses."),
    ] = None
    verify_hash: Annotated[bool, msgspec.Meta(description="Check each tensor's hash, where the file has any.")] = False
