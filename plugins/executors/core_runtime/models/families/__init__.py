"""The table of model families, one row a family in files by lineage, and the reading of a configuration to a
`DecoderSpec`.
"""

from core_runtime.models.families.build import ACTIVATIONS
from core_runtime.models.families.plugged import plugin_names, plugin_row, plugin_spec
from core_runtime.models.families.row import NEVER, Family, HeadNorm
from core_runtime.models.families.table import (
    Reading,
    UnknownArchitecture,
    decoder_spec,
    families,
    family_for,
    layer_specs,
    read_configuration,
    row_spec,
    tensor_shapes,
    unknown_keys,
    weight_map,
    without_head,
)

__all__ = [
    "ACTIVATIONS",
    "NEVER",
    "Family",
    "HeadNorm",
    "Reading",
    "UnknownArchitecture",
    "decoder_spec",
    "families",
    "family_for",
    "layer_specs",
    "plugin_names",
    "plugin_row",
    "plugin_spec",
    "read_configuration",
    "row_spec",
    "tensor_shapes",
    "unknown_keys",
    "weight_map",
    "without_head",
]
