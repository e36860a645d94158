"""Manifest of the `peft` format of adapters."""

from __future__ import annotations

from core.plugin.manifest_of import manifest_of

CONTRACT = 1

core_spec, core_load = manifest_of(
    "peft",
    "directories with adapter_config.json and adapter_model.safetensors or .bin",
    "core_adapters.peft.format:PeftFormat",
)
