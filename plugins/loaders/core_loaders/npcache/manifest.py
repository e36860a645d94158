"""Manifest of the `npcache` loader."""

from __future__ import annotations

from core.plugin.manifest_of import manifest_of

CONTRACT = 1

core_spec, core_load = manifest_of(
    "npcache",
    "as pt, kept as numpy files in the folder np beside them; only when asked for",
    "core_loaders.npcache.loader:NpcacheLoader",
)
"""There is no `core_claim`: it writes into the model's directory, so users must ask for it."""
