"""Manifest of the `npcache` loader."""

from __future__ import annotations

from core.plugin.hookspecs import hookimpl
from core.plugin.manifest_of import manifest_of
from core_runtime.specs.checkpoint import CheckpointFacts, FileFacts

CONTRACT = 1

core_spec, core_load = manifest_of(
    "npcache",
    "as pt, kept as numpy files in the folder np beside them; only when asked for",
    "core_loaders.npcache.loader:NpcacheLoader",
)


@hookimpl
def core_claim(facts: CheckpointFacts | FileFacts) -> str | None:
    """Claim nothing: this loader writes into the model's directory, so users must request it."""
    return None
