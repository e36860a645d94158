"""The table of model families. Torch-free.

Owns: the choice of a row for a configuration, the record of keys that are read, and tensor names. Never does: hold
weights or run anything.
Called by: config (facts, selection, memory plan), models, the dummy loader.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from fnmatch import translate
from functools import cache
from typing import Any, NamedTuple

import msgspec

from core.api.errors import UserError
from core.api.specs import AttentionSpec, LayerSpec
from core.entry_points import named, offers
from core_runtime.models.configuration import Configuration, configuration
from core_runtime.models.families.build import class_defaults, configuration_of, spec_of
from core_runtime.models.families.class_heads import class_head
from core_runtime.models.families.fused_shards import fused_shards
from core_runtime.models.families.row import Family
from core_runtime.models.families.wrappers import OTHER, WRAPPED, is_wrapper, outer_config, text_config
from core_runtime.models.tensors.tensor_check import OWN_HEAD
from core_runtime.models.tensors.weight_map import WeightMap
from core_runtime.models.unread import Unread, refuse, unread, unread_outside
from core_runtime.models.weight_rules import Copied, Ignored, Rename, WeightRule, modules
from core_runtime.specs.checkpoint import CheckpointManifest
from core_runtime.specs.decoder_spec import DecoderSpec

BODY_ALONE = Rename(r"^(?=(embed_tokens|layers|norm)\.)", "model.")
"""Prefix rule for a checkpoint that was saved without its head, such as those of embedding models."""

ROWS_GROUP = "core.model_rows"
"""Entry-point group for tuples of `Family`. A plugin of the kind `model` is consulted for one checkpoint; these rows
are all known.
"""
IGNORED_TENSORS = "ignored_tensors"


@cache
def families() -> tuple[Family, ...]:
    """Return the rows of every installed distribution, in the order of their entry points' names.

    They are loaded on first use: a module of rows imports this package, so an import here would be circular.
    """
    rows: list[Family] = []
    for offer in sorted(offers(ROWS_GROUP), key=lambda offer: offer.name):
        rows += named(offer.target)
    return tuple(rows)


class UnknownArchitecture(UserError):
    """No row serves a configuration. A plugin or transformers may."""


class Reading(NamedTuple):
    """The result of reading a configuration with a row.

    row: the row.
    spec: the model's shape.
    read: the keys that the shape depends on; keys of nested mappings with their path.
    unread: all other keys.
    """

    row: Family
    spec: DecoderSpec
    read: frozenset[str]
    unread: Unread


def family_for(hf_config: Mapping[str, Any]) -> Family:
    """Return the row that serves a configuration.

    Of several rows, the row of the configuration's first known architecture counts.

    Raises UnknownArchitecture naming the nearest rows, UserError when several rows claim that architecture.
    """
    text = text_config(hf_config)
    model_type = str(text.get("model_type") or "")
    architectures = [str(name) for name in text.get("architectures") or ()]
    by_type = [family for family in families() if model_type in family.model_types]
    by_name = [family for family in families() if any(name in family.architectures for name in architectures)]
    claims = _first_named(by_type or by_name, architectures)
    if len(claims) > 1:
        rows = " and ".join(f"'{family.name}'" for family in claims)
        raise UserError(
            f"The configuration's model_type '{model_type}' and architectures {architectures} mean {rows}, of which only one "
            "can serve it; say which with --hf-overrides.model_type."
        )
    if claims:
        return claims[0]
    outer = "" if text is hf_config else str(hf_config.get("model_type"))
    raise _unknown(next(iter(architectures), model_type) or "(none given)", outer)


def _unknown(what: str, outer: str) -> UnknownArchitecture:
    """Return the error for an architecture that no row serves. outer: type of the model whose text it is; empty: of itself."""
    if not families():
        return UnknownArchitecture(
            "No model families are installed; `pip install core-engine-models` brings those of the engine."
        )
    whose = f" of the text in a model of type '{outer}'" if outer else ""
    return UnknownArchitecture(
        f"Unknown model architecture '{what}'{whose}; of {len(families())} known families, the nearest names are "
        f"{', '.join(_nearest(what))}. `core models` lists all."
    )


def _first_named(claims: list[Family], architectures: list[str]) -> list[Family]:
    """Return the rows of the first architecture that any of several rows has; all of them if none has one."""
    if len(claims) < 2:
        return claims
    for name in architectures:
        found = [family for family in claims if name in family.architectures]
        if found:
            return found
    return claims


def _nearest(what: str) -> list[str]:
    """Return the names in the table that are most similar to an architecture's name."""
    known: list[str] = []
    for family in families():
        known.extend(family.model_types)
        known.extend(family.architectures)
    return get_close_matches(what, known, n=3, cutoff=0.5) or [family.name for family in families()[:1]]


def weight_map(
    manifest: CheckpointManifest, spec: DecoderSpec, row: Family | None = None, *, of_modules: bool = False
) -> WeightMap:
    """Return the map from a checkpoint to its tensors under canonical names.

    row: None: the table's row for its configuration.
    of_modules: the tensors are changes of modules, as adapters have them: modules that share tensors have one each.
    """
    family = row or family_for(manifest.config)
    num_experts, _ = spec.router_widths()
    rules = _rules_of(family, manifest.config, spec)
    rules.extend(_drafting(manifest.config, len(spec.blocks)))
    rules.extend(user_ignored(manifest.config))
    rules.extend(fused_shards(manifest, spec))
    if text_config(manifest.config).get("is_causal") is False:
        rules.append(Ignored(r"lm_head\..*", "is_causal is false, so the model gives no text"))
    if is_wrapper(manifest.config):
        rules = [*WRAPPED, *rules]
    shapes = spec.tensor_shapes()
    if "embed_tokens.weight" in manifest.tensors and "model.embed_tokens.weight" in shapes:
        rules = [BODY_ALONE, *rules]
    if manifest.tensors.keys() >= shapes.keys():  # as for dummy weights: the names are canonical already
        rules = [
            rule
            for rule in rules
            if isinstance(rule, Ignored) and not any(re.fullmatch(rule.pattern, one) for one in shapes)
        ]
    if of_modules:
        rules = [rule for rule in rules if not (isinstance(rule, Rename | Copied | Ignored) and rule.apart)]
    settled = {} if spec.pooling_head is None else spec.pooling_head.named(manifest.tensors)
    return WeightMap(manifest, rules, num_experts, shapes, settled=settled)


def without_head(spec: DecoderSpec, manifest: CheckpointManifest) -> DecoderSpec:
    """Return the shape of a model whose hidden states are the result: a head that the checkpoint lacks is not required.

    manifest: tensors under canonical names.
    """
    if spec.tied or OWN_HEAD in manifest.tensors:
        return spec
    return msgspec.structs.replace(spec, causal_lm=False)


def _drafting(hf_config: Mapping[str, Any], num_layers: int) -> list[Ignored]:
    """Return rules that ignore the tensors of the layers after the last one, which draft tokens (as in DeepSeek-V3)."""
    config = configuration(text_config(hf_config))
    count = config.count("num_nextn_predict_layers", 0) or config.count("num_mtp_layers", 0)
    rules = []
    for index in range(num_layers, num_layers + count):
        rules.append(
            Ignored(rf"(model\.)?(language_model\.)?(model\.)?layers\.{index}\..*", "a layer that drafts tokens")
        )
    return rules


def family_rules(spec: DecoderSpec, hf_config: Mapping[str, Any]) -> list[WeightRule]:
    """Return the family's rules for the names and layout of its tensors; none for a family that is not in the table."""
    for family in families():
        if family.name == spec.family:
            return _rules_of(family, hf_config, spec)
    return []


def _rules_of(family: Family, hf_config: Mapping[str, Any], spec: DecoderSpec) -> list[WeightRule]:
    rules: list[WeightRule] = []
    for own, usual in family.names:
        rules.extend(modules((own, usual)))
    if isinstance(family.weights, tuple):
        rules.extend(family.weights)
    else:
        config = configuration_of(text_config(hf_config), family, strict=True)
        rules.extend(family.weights(config, spec))
    return rules


def user_ignored(hf_config: Mapping[str, Any]) -> list[Ignored]:
    """Return rules for tensors that the user excludes: patterns in `ignored_tensors`, set with `--hf-overrides`."""
    patterns = hf_config.get(IGNORED_TENSORS) or ()
    if isinstance(patterns, str) or not all(isinstance(pattern, str) for pattern in patterns):
        raise UserError(f'{IGNORED_TENSORS} is {patterns!r}; expected a list of patterns such as "v_head.*".')
    return [Ignored(translate(pattern), "told to by --hf-overrides", renamed=True) for pattern in patterns]


def decoder_spec(hf_config: Mapping[str, Any], family: Family | None = None) -> DecoderSpec:
    """Resolve a configuration to a shape. Raises UserError for missing or impossible values.

    family: a row, which the table need not have; None: the table's row for the configuration, which must read every key
        that some row knows.
    """
    if family is not None:
        return _whole(configuration_of(text_config(hf_config), family, strict=False), family)
    return row_spec(hf_config, family_for(hf_config))


def row_spec(hf_config: Mapping[str, Any], row: Family) -> DecoderSpec:
    """Return the model's shape by a row. Raises UserError also for a key that some row knows and this one does not
    read.
    """
    reading = read_configuration(hf_config, row)
    refuse(reading.unread, row.name)
    return reading.spec


def read_configuration(hf_config: Mapping[str, Any], row: Family) -> Reading:
    """Return the model's shape and the keys that it depends on. Raises UserError for missing or impossible values."""
    config = configuration_of(text_config(hf_config), row, strict=True)
    spec = _whole(config, row)
    known = class_defaults(config, row)
    defaults = {} if known is None else known.defaults
    model_types: list[str] = []
    for other in families():
        model_types.extend(other.model_types)
    neutral_here = {**row.neutral, **_kinds_that_are_not_there(spec)}
    inside = unread(config, model_types, neutral_here, defaults)
    outer = outer_config(hf_config)
    if outer:
        outside = unread_outside(outer, config, OTHER, model_types, row.name)
        neutral = {**outside.neutral, **inside.neutral}
        inside = Unread(inside.known, [*inside.unknown, *outside.unknown], neutral)
    return Reading(row, spec, frozenset(config.reads), inside)


def _whole(config: Configuration, row: Family) -> DecoderSpec:
    """Return the model's shape, with the classification head of its architecture if there is one."""
    spec = spec_of(config, row)
    if config.values_given.get("is_causal") is False:
        config.reads.add("is_causal")
        spec = two_sided(spec)
    head = class_head(config.values_given, row.class_heads, spec)
    return spec if head is None else msgspec.structs.replace(spec, pooling_head=head)


def two_sided(spec: DecoderSpec) -> DecoderSpec:
    """Return a decoder whose tokens see all of their text, with `is_causal` false: it gives hidden states and no text.

    Raises UserError for layers with a state, or with latents, which see earlier tokens alone.
    """
    blocks = []
    for block in spec.blocks:
        if block.beside is not None or not isinstance(block.mixer, AttentionSpec | None):
            raise UserError(
                f"is_causal is false, and layers of {spec.family} models see earlier tokens alone; leave it out."
            )
        mixer = None if block.mixer is None else msgspec.structs.replace(block.mixer, causal=False)
        blocks.append(msgspec.structs.replace(block, mixer=mixer))
    return msgspec.structs.replace(spec, blocks=tuple(blocks), causal_lm=False)


def _kinds_that_are_not_there(spec: DecoderSpec) -> dict[str, str]:
    """Return, as neutral keys with reasons, the keys about kinds of layers that the model does not have."""
    kinds = {mixer.kind for mixer in spec.mixers}
    found = {}
    for kind, name in (("full", "full_attention"), ("sliding", "sliding_attention")):
        if kind not in kinds:
            found[f"rope_parameters.{name}.*"] = "no layer is of this kind"
    return found


def unknown_keys(hf_config: Mapping[str, Any]) -> list[str]:
    """Return the keys of a configuration that neither a family nor a list of neutral keys contains."""
    return read_configuration(hf_config, family_for(hf_config)).unread.unknown


def layer_specs(hf_config: Mapping[str, Any]) -> list[LayerSpec]:
    """Return every matrix of the model, once (a tied head is the embedding)."""
    return list(decoder_spec(hf_config).linears())


def tensor_shapes(hf_config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of a checkpoint of this model, by canonical name."""
    return decoder_spec(hf_config).tensor_shapes()
