"""The table of model families, one row a family in files by lineage, and how a configuration becomes a `DecoderSpec`."""

from core.models.families.build import ACTIVATIONS
from core.models.families.row import NEVER, Family, HeadNorm
from core.models.families.table import (
    FAMILIES,
    decoder_spec,
    family_for,
    layer_specs,
    renamed,
    tensor_shapes,
    unknown_keys,
    weight_map,
)

__all__ = [
    "ACTIVATIONS",
    "FAMILIES",
    "NEVER",
    "Family",
    "HeadNorm",
    "decoder_spec",
    "family_for",
    "layer_specs",
    "renamed",
    "tensor_shapes",
    "unknown_keys",
    "weight_map",
]
