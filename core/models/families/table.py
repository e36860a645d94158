"""The table of model families. Torch-free.

Owns: which row serves a configuration, tensor names in the table's families. Never does: hold weights or run anything.
Called by: config (facts, selection, memory plan), models, the dummy loader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from fnmatch import translate
from typing import Any

import msgspec

from core.api.checkpoint import CheckpointManifest, TensorInfo
from core.api.decoder_spec import DecoderSpec
from core.api.errors import UserError
from core.api.specs import LayerSpec
from core.models.configuration import Configuration
from core.models.families import (
    alibi,
    bert,
    cohere,
    deepseek,
    gemma,
    glm,
    gpt2,
    gpt_oss,
    hybrid,
    llama,
    mamba,
    moe,
    olmo,
    opt,
    phi,
    sigmoid_moe,
)
from core.models.families.build import class_defaults, configuration_of, spec_of
from core.models.families.row import Family
from core.models.families.wrappers import WRAPPED, is_wrapper, text_config
from core.models.unread import Unread, refuse, unread
from core.models.weight_map import WeightMap
from core.models.weight_rules import Ignored, WeightRule, modules

FAMILIES: tuple[Family, ...] = (
    *llama.ROWS,
    *gemma.ROWS,
    *moe.ROWS,
    *deepseek.ROWS,
    *cohere.ROWS,
    *glm.ROWS,
    *olmo.ROWS,
    *phi.ROWS,
    *gpt_oss.ROWS,
    *sigmoid_moe.ROWS,
    *mamba.ROWS,
    *hybrid.ROWS,
    *gpt2.ROWS,
    *opt.ROWS,
    *alibi.ROWS,
    *bert.ROWS,
)
"""One row a family."""
IGNORED_TENSORS = "ignored_tensors"


def family_for(hf_config: Mapping[str, Any]) -> Family:
    """The row that serves a configuration. Raises UserError naming the nearest architectures, or the rows that claim it."""
    hf_config = text_config(hf_config)
    model_type = str(hf_config.get("model_type") or "")
    architectures = [str(name) for name in hf_config.get("architectures") or ()]
    by_type = [family for family in FAMILIES if model_type in family.model_types]
    by_name = [family for family in FAMILIES if any(name in family.architectures for name in architectures)]
    claims = by_type or by_name
    if len(claims) > 1:
        both = " and ".join(f"'{family.name}'" for family in claims)
        raise UserError(f"The configuration's model_type '{model_type}' and architectures {architectures} mean {both}.")
    if claims:
        return claims[0]
    known: list[str] = []
    for family in FAMILIES:
        known.extend(family.model_types)
        known.extend(family.architectures)
    what = model_type or "(none given)"
    if architectures:
        what = architectures[0]
    near = get_close_matches(what, known, n=3, cutoff=0.5) or [FAMILIES[0].name]
    raise UserError(
        f"Unknown model architecture '{what}'; of {len(FAMILIES)} known families, the nearest names are "
        f"{', '.join(near)}. `core models` lists all."
    )


def renamed(tensors: Mapping[str, TensorInfo], canonical_name: Callable[[str], str]) -> dict[str, TensorInfo]:
    """A checkpoint's tensors under the names that `canonical_name` gives them."""
    result = {}
    for name, info in tensors.items():
        new_name = canonical_name(name)
        result[new_name] = msgspec.structs.replace(info, name=new_name)
    return result


def weight_map(manifest: CheckpointManifest, spec: DecoderSpec) -> WeightMap:
    """The way from the checkpoint of a family of the table to its tensors under canonical names."""
    family = family_for(manifest.config)
    num_experts, _ = spec.router_widths()
    if manifest.tensors.keys() >= spec.tensor_shapes().keys():  # as of dummy weights: the names are canonical
        return WeightMap(manifest, (*told_to_ignore(manifest.config),), num_experts)
    rules: list[WeightRule] = []
    for own, usual in family.names:
        rules.extend(modules((own, usual)))
    rules.extend(family.weights(spec) if callable(family.weights) else family.weights)
    rules.extend(told_to_ignore(manifest.config))
    if is_wrapper(manifest.config):
        rules = [*WRAPPED, *rules]
    return WeightMap(manifest, rules, num_experts)


def told_to_ignore(hf_config: Mapping[str, Any]) -> list[Ignored]:
    """Tensors that the user told to leave unread: patterns in `ignored_tensors`, by `--hf-overrides`."""
    patterns = hf_config.get(IGNORED_TENSORS) or ()
    if isinstance(patterns, str) or not all(isinstance(pattern, str) for pattern in patterns):
        raise UserError(f'{IGNORED_TENSORS} is {patterns!r}; expected a list of patterns such as "v_head.*".')
    return [Ignored(translate(pattern), "told to by --hf-overrides") for pattern in patterns]


def decoder_spec(hf_config: Mapping[str, Any], family: Family | None = None) -> DecoderSpec:
    """Resolve a configuration. Raises UserError for missing or impossible values.

    family: a row that the table need not have; None: the table's row for the configuration.
    """
    hf_config = text_config(hf_config)
    if family is not None:
        return spec_of(configuration_of(hf_config, family, strict=False), family)
    row = family_for(hf_config)
    config = configuration_of(hf_config, row, strict=True)
    spec = spec_of(config, row)
    refuse(_unread(config, row), row.name)
    return spec


def unknown_keys(hf_config: Mapping[str, Any]) -> list[str]:
    """The keys of a configuration that no family has, nor any list of neutral keys."""
    hf_config = text_config(hf_config)
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
