"""Manifest of the `dummy` loader."""

from __future__ import annotations

from core.plugin.manifest_of import manifest_of

CONTRACT = 1

core_spec, core_load = manifest_of(
    "dummy",
    "random weights for a directory with config.json; only when asked for",
    "core_loaders.dummy.loader:DummyLoader",
)
"""There is no `core_claim`: users get random weights only by request."""
