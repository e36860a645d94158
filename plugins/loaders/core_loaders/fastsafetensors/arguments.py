"""The arguments of the `fastsafetensors` loader.

Owns: them. Never does: import the library. Called by: the manifest, the loader.
"""

from __future__ import annotations

from typing import Annotated

import msgspec


class FastArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments under `--model-loader-extra-config`."""

    max_threads: Annotated[int, msgspec.Meta(ge=1, le=1024, description="Threads that copy.")] = 16
    bbuf_size_kb: Annotated[int, msgspec.Meta(ge=64, description="KiB of the bounce buffer of a copy.")] = 16 * 1024
