"""Manifest of the `tensorizer` loader."""

from __future__ import annotations

from typing import Annotated

import msgspec

from core.api.checkpoint import CheckpointFacts, FileFacts
from core.plugin.hookspecs import hookimpl
from core.plugin.manifest_of import manifest_of

CONTRACT = 1


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


core_spec, core_load = manifest_of(
    "tensorizer",
    "files written by tensorizer, beside config.json; only when asked for",
    "core_plugins.loaders.tensorizer.loader:TensorizerLoader",
    arguments=TensorizerArguments,
)


@hookimpl
def core_claim(facts: CheckpointFacts | FileFacts) -> str | None:
    """Claim nothing: users have to ask for it."""
    return None
