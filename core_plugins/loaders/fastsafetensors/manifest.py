"""Manifest of the `fastsafetensors` loader."""

from __future__ import annotations

from typing import Annotated

import msgspec

from core.plugin.manifest_of import manifest_of

CONTRACT = 1


class FastArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments under `--model-loader-extra-config`."""

    max_threads: Annotated[int, msgspec.Meta(ge=1, le=1024, description="Threads that copy.")] = 16
    bbuf_size_kb: Annotated[int, msgspec.Meta(ge=64, description="KiB of the bounce buffer of a copy.")] = 16 * 1024


core_spec, core_load = manifest_of(
    "fastsafetensors",
    "safetensors through fastsafetensors, without GPU direct storage; only when asked for",
    "core_plugins.loaders.fastsafetensors.loader:FastSafetensorsLoader",
    arguments=FastArguments,
)
"""There is no `core_claim`: users get it only when they ask for it."""
