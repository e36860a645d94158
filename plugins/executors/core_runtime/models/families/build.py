"""The `DecoderSpec` of a configuration and its row. Torch-free.

Owns: this translation. Never does: know a family by name, hold weights. Called by: the table's `decoder_spec`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from core.api.errors import UserError, nearest
from core_runtime.models.configuration import Configuration, configuration, positive
from core_runtime.models.defaults import Defaults, family_defaults
from core_runtime.models.families.attention import attention_of, heads_of, latent_of, rope_of
from core_runtime.models.families.experts import experts_of
from core_runtime.models.families.row import Family
from core_runtime.models.families.scalars import has_bias, scalar
from core_runtime.specs.block_spec import BlockSpec, MLPSpec, NormSpec, PositionsSpec
from core_runtime.specs.decoder_spec import BlockOrder, DecoderSpec

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "relu2": "relu2",
    "xielu": "xielu",
}
"""Names of activations in configurations → names in `core_runtime.layers.activations`."""
ACTIVATION_KEYS = ("hidden_activation", "hidden_act", "activation_function", "activation")
"""Names of the activation's key, in order of precedence."""


ALWAYS = frozenset(("tie_word_embeddings", "num_hidden_layers", "max_position_embeddings"))
"""Keys that every model of transformers has, whether or not its class lists them."""


def configuration_of(hf_config: Mapping[str, Any], family: Family, *, strict: bool) -> Configuration:
    """Return a configuration with the family's names and defaults, which records the keys that are read.

    strict: keys that transformers' class does not have count as absent, as they do in transformers.
    """
    known = class_defaults(hf_config, family)
    own_names: dict[str, tuple[str, ...]] = {}
    defaults: dict[str, Any] = {}
    if known is not None:
        defaults.update(known.values)
        for usual, own in known.attribute_map.items():
            own_names[usual] = (own,)
    own_keys: set[str] = set()
    for usual, names in family.keys.items():
        more = (names,) if isinstance(names, str) else tuple(names)
        own_names[usual] = (*more, *own_names.get(usual, ()))
        own_keys.update(more)
    defaults.update(family.defaults)
    readable = None
    if strict and known is not None:
        readable = known.readable.union(known.attribute_map, own_keys, family.defaults, ALWAYS)
    config = Configuration(hf_config, defaults, own_names, readable)
    return config.overlaid(family.fixed) if family.fixed else config


def class_defaults(hf_config: Mapping[str, Any], family: Family) -> Defaults | None:
    """Return the defaults of transformers' class for a configuration. For a model type outside the row, the row's first
    type counts.
    """
    model_type = str(hf_config.get("model_type") or "")
    if model_type not in family.model_types:
        model_type = family.model_types[0]
    return family_defaults(model_type)


def spec_of(given: Configuration, family: Family) -> DecoderSpec:
    """Return the model's shape. Raises UserError for missing or impossible values."""
    config = given if family.usual is None else configuration(family.usual(given))
    num_layers = positive(config, "num_hidden_layers")
    hidden = positive(config, "hidden_size")
    norm = _norm(family, config)
    blocks = [_block(family, config, index) for index in range(num_layers)]
    spec = DecoderSpec(
        family=family.name,
        hidden_size=hidden,
        vocab_size=positive(config, "vocab_size"),
        blocks=tuple(blocks),
        max_position=positive(config, "max_position_embeddings", 2048),
        tied=config.flag("tie_word_embeddings", family.tied_by_default),
        norm=norm,
        heads=heads_of(family, config, norm),
        mlp=_mlp(family, config, norm),
        order=_order(family, config),
        embed_scale=_embed_scale(family, config),
        residual_scale=scalar(family, config, "residual"),
        logit_scale=scalar(family, config, "logits"),
        logit_cap=config.optional_number("final_logit_softcapping", 1e-6),
        head_bias=has_bias(family, config, "head", usual=False),
        embed_norm=family.embed_norm,
        positions=_positions(family, config),
        token_types=positive(config, family.token_types) if family.token_types else 0,
        final_norm=family.final_norm,
        causal_lm=not family.encoder,
    )
    return spec if family.adjust is None else family.adjust(config, spec)


def _norm(family: Family, config: Configuration) -> NormSpec:
    eps = None
    for name in ("rms_norm_eps", "layer_norm_eps", "norm_eps", "layer_norm_epsilon"):
        # All names are read, so that none is reported as unknown; the first one that is there counts.
        own = config.optional_number(name, 0.0)
        eps = own if eps is None else eps
    return NormSpec(
        kind=family.norm,
        eps=family.eps_default if eps is None else eps,
        offset=family.norm_offset,
        weighted=family.norm_weighted,
        bias=family.norm_bias,
    )


def _order(family: Family, config: Configuration) -> BlockOrder:
    if family.order is not None:
        return family.order
    sandwich = family.sandwich_norms
    if isinstance(sandwich, str):
        sandwich = config.flag(sandwich)
    return "sandwich" if sandwich else "pre"


def _mlp(family: Family, config: Mapping[str, Any], norm: NormSpec) -> MLPSpec:
    usual = bool(config.get("mlp_bias", False))
    return MLPSpec(
        size=positive(config, "intermediate_size") if family.has_mlp else 0,
        activation=activation_of(config),
        gated=family.gated,
        bias=has_bias(family, config, "mlp", usual),
        down_bias=has_bias(family, config, "down", has_bias(family, config, "mlp", usual)),
        fused=family.fused_gate_up,
        inner_norm=norm if family.inner_norms else None,
        activation_tensors=family.activation_tensors,
    )


def _embed_scale(family: Family, config: Mapping[str, Any]) -> float:
    if family.scale_embedding:
        return math.sqrt(positive(config, "hidden_size"))
    return scalar(family, config, "embed")


def _positions(family: Family, config: Mapping[str, Any]) -> PositionsSpec | None:
    if family.learned_positions is None:
        return None
    return PositionsSpec(positive(config, "max_position_embeddings"), family.learned_positions)


def _block(family: Family, config: Mapping[str, Any], index: int) -> BlockSpec:
    experts = experts_of(family, config, index)
    state = family.state(config, index) if family.state else None
    if state is not None and not family.side_by_side:
        block = BlockSpec(state, None, experts, has_mlp=family.has_mlp)
    else:
        mixer = latent_of(config) if family.latent else attention_of(family, config, index)
        rope = rope_of(family, config, index)
        block = BlockSpec(mixer, rope, experts, has_mlp=family.has_mlp, beside=state)
    return block if family.block is None else family.block(config, index, block)


def activation_of(config: Mapping[str, Any]) -> str:
    """Return the name of the MLP's activation. Raises UserError for an unknown one."""
    key = "hidden_act"
    name = "silu"
    for one in ACTIVATION_KEYS:
        if config.get(one):
            key = one
            name = config[one]
            break
    if name not in ACTIVATIONS:
        raise UserError(f"{key} is '{name}'; known are: {', '.join(ACTIVATIONS)}.{nearest(str(name), ACTIVATIONS)}")
    return ACTIVATIONS[name]
