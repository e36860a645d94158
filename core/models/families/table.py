"""The table of model families. Torch-free.

Owns: which row serves a configuration, tensor names in the table's families. Never does: hold weights or run anything.
Called by: config (facts, selection, memory plan), models, the dummy loader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from core.api.checkpoint import CheckpointManifest, TensorInfo
from core.api.decoder_spec import DecoderSpec
from core.api.errors import UserError, nearest
from core.api.specs import LayerSpec
from core.models.configuration import Configuration
from core.models.families import deepseek, gemma, gpt2, llama, moe
from core.models.families.build import class_defaults, configuration_of, spec_of
from core.models.families.row import Family
from core.models.unread import Unread, refuse, unread

FAMILIES: tuple[Family, ...] = (
    *llama.ROWS,
    *gemma.ROWS,
    *moe.ROWS,
    *deepseek.ROWS,
    *gpt2.ROWS,
)
"""One row a family."""


def family_for(hf_config: Mapping[str, Any]) -> Family:
    """The row that serves a configuration. Raises UserError naming the nearest known architecture."""
    model_type = str(hf_config.get("model_type") or "")
    architectures = [str(name) for name in hf_config.get("architectures") or ()]
    for family in FAMILIES:
        if model_type in family.model_types or any(name in family.architectures for name in architectures):
            return family
    known: list[str] = []
    for family in FAMILIES:
        known.extend(family.model_types)
        known.extend(family.architectures)
    what = model_type or "(none given)"
    if architectures:
        what = architectures[0]
    raise UserError(f"Unknown model architecture '{what}'; known are: {', '.join(known)}.{nearest(what, known)}")


def renamed(tensors: Mapping[str, TensorInfo], canonical_name: Callable[[str], str]) -> dict[str, TensorInfo]:
    """A checkpoint's tensors under the names that `canonical_name` gives them."""
    result = {}
    for name, info in tensors.items():
        new_name = canonical_name(name)
        result[new_name] = msgspec.structs.replace(info, name=new_name)
    return result


def canonical(manifest: CheckpointManifest) -> CheckpointManifest:
    """The checkpoint of a family of the table, its tensors under canonical names."""
    names = family_for(manifest.config).names
    if not names:
        return manifest

    def canonical_name(name: str) -> str:
        for own, usual in names:
            name = name.replace(f".{own}.", f".{usual}.")
        return name

    return msgspec.structs.replace(manifest, tensors=renamed(manifest.tensors, canonical_name))


def decoder_spec(hf_config: Mapping[str, Any], family: Family | None = None) -> DecoderSpec:
    """Resolve a configuration. Raises UserError for missing or impossible values.

    family: a row that the table need not have; None: the table's row for the configuration.
    """
    if family is not None:
        return spec_of(configuration_of(hf_config, family, strict=False), family)
    row = family_for(hf_config)
    config = configuration_of(hf_config, row, strict=True)
    spec = spec_of(config, row)
    refuse(_unread(config, row), row.name)
    return spec


def unknown_keys(hf_config: Mapping[str, Any]) -> list[str]:
    """The keys of a configuration that no family has, nor any list of neutral keys."""
    row = family_for(hf_config)
    config = configuration_of(hf_config, row, strict=True)
    spec_of(config, row)
    return _unread(config, row).unknown


def _unread(config: Configuration, family: Family) -> Unread:
    known = class_defaults(config, family)
    defaults = {} if known is None else known.defaults
    model_types: list[str] = []
    for row in FAMILIES:
        model_types.extend(row.model_types)
    return unread(config, model_types, family.neutral, defaults)


def layer_specs(hf_config: Mapping[str, Any]) -> list[LayerSpec]:
    """Every matrix of the model, once (a tied head is the embedding)."""
    return list(decoder_spec(hf_config).linears())


def tensor_shapes(hf_config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every tensor of a checkpoint of this model, by canonical name."""
    return decoder_spec(hf_config).tensor_shapes()
