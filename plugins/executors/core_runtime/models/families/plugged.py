"""The model family of a plugin, which gives it as a row or as methods of its own. Torch-free.

Owns: the distinction between the two forms. Never does: choose a plugin. Called by: the configuration, the model's
instance, `core_kit`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.api.errors import PluginError
from core_runtime.contracts import HasRow, ModelFamily
from core_runtime.models.families.row import Family
from core_runtime.models.families.table import row_spec, weight_map
from core_runtime.models.tensors.weight_map import WeightMap
from core_runtime.specs.checkpoint import CheckpointManifest
from core_runtime.specs.decoder_spec import DecoderSpec


def plugin_row(family: ModelFamily | HasRow) -> Family | None:
    """Return the row that a plugin gives, None when it has methods. Raises PluginError when `row` is not a `Family`."""
    given = getattr(family, "row", None)
    if isinstance(given, Family):
        return given
    if isinstance(family, ModelFamily):
        return None
    raise PluginError(f"its row is {given!r:.60}, expected a core_runtime.models.families.Family.")


def plugin_spec(family: ModelFamily | HasRow, hf_config: Mapping[str, Any]) -> DecoderSpec:
    """Return the model's shape. Raises UserError for missing or impossible values."""
    row = plugin_row(family)
    if row is not None:
        return row_spec(hf_config, row)
    assert isinstance(family, ModelFamily), "a plugin has one of the two contracts, or is not loaded"
    return family.decoder_spec(hf_config)


def plugin_names(family: ModelFamily | HasRow, manifest: CheckpointManifest, spec: DecoderSpec) -> WeightMap:
    """Return the map from a checkpoint to its tensors under canonical names. Raises CheckpointError when two get the
    same name.
    """
    row = plugin_row(family)
    if row is not None:
        return weight_map(manifest, spec, row)
    assert isinstance(family, ModelFamily), "a plugin has one of the two contracts, or is not loaded"
    return WeightMap(manifest, (), 0, canonical_name=family.canonical_name)
