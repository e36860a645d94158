"""The arguments of the loaders `runai_streamer` and `runai_streamer_sharded`.

Owns: their declarations. Never does: import the library. Called by: the manifests, the loader.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from core_runtime.models.tensors.shards import DEFAULT


class StreamerArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys of `--model-loader-extra-config` for `runai_streamer`."""

    concurrency: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=1024)] | None,
        msgspec.Meta(description="Threads that read. Unset: the streamer's own default."),
    ] = None
    memory_limit: Annotated[
        Annotated[int, msgspec.Meta(ge=-1)] | None,
        msgspec.Meta(
            description="Bytes of the buffer: 0 for the largest tensor, -1 for no limit. Unset: the streamer's own default."
        ),
    ] = None


class ShardedArguments(StreamerArguments, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys of `--model-loader-extra-config` for `runai_streamer_sharded`, which reads files of `core save-sharded`."""

    pattern: Annotated[
        str, msgspec.Meta(description="Names of the files, with {part} and, if it is there, {rank}.")
    ] = DEFAULT
