"""Manifest of the `fastsafetensors` loader."""

from __future__ import annotations

from core.plugin.manifest_of import manifest_of
from core_loaders.fastsafetensors.arguments import FastArguments

CONTRACT = 1


core_spec, core_load = manifest_of(
    "fastsafetensors",
    "safetensors through fastsafetensors, without GPU direct storage; only when asked for",
    "core_loaders.fastsafetensors.loader:FastSafetensorsLoader",
    arguments=FastArguments,
)
"""There is no `core_claim`: users get this loader only by request."""
