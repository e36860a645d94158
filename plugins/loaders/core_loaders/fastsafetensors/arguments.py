"""The arguments of the `fastsafetensors` loader.

Owns: their declarations. Never does: import the library. Called by: the manifest, the loader.
"""

from __future__ import annotations

from typing import Annotated

import msgspec


class FastArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys of `--model-loader-extra-config` for this loader."""

    max_threads: Annotated[int, msgspec.Meta(ge=1, le=1024, description="Threads that copy.")] = 16
    bbuf_size_kb: Annotated[int, msgspec.Meta(ge=64, description="KiB of the bounce buffer of a copy.")] = 16 * 1024
