"""Manifest of the `gguf` format of adapters."""

from __future__ import annotations

from core.plugin.manifest_of import manifest_of

CONTRACT = 1

core_spec, core_load = manifest_of(
    "gguf",
    "GGUF files whose general.type is adapter",
    "core_adapters.gguf.format:GGUFFormat",
)
