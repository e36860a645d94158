"""Manifest of the `tensorizer` loader."""

from __future__ import annotations

from core.plugin.manifest_of import manifest_of
from core_loaders.tensorizer.arguments import TensorizerArguments

CONTRACT = 1

core_spec, core_load = manifest_of(
    "tensorizer",
    "files written by tensorizer, beside config.json; only when asked for",
    "core_loaders.tensorizer.loader:TensorizerLoader",
    arguments=TensorizerArguments,
)
"""There is no `core_claim`: users must ask for it."""
