"""Rotary embeddings as configurations describe them. Torch-free.

Owns: the several spellings of their keys. Never does: compute angles (`core_runtime.layers.rotary` does). Called by:
`core_runtime.models.families`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from core.api.errors import UserError
from core_runtime.models.configuration import Configuration, configuration
from core_runtime.specs.rope_spec import RopeSpec

TYPES = {name: name for name in ("default", "linear", "dynamic", "llama3", "yarn", "longrope")}
TYPES |= {"mrope": "default", "su": "longrope"}
"""Names in configurations → type. What `mrope` adds is in `RopeSpec.axes`."""
NUM_AXES = 3


def rope_spec(hf_config: Mapping[str, Any], full: bool, interleaved: bool = False) -> RopeSpec:
    """Return the rotary embedding of a layer. Raises UserError.

    full: whether the layer sees all keys or a window.
    interleaved: whether the family's pairs are neighbours, unless the configuration says otherwise.
    """
    config = configuration(hf_config)
    values, theta = _rope_values(config, full)
    rope_type = _rope_type(values)
    length = config.positive("max_position_embeddings", 8192)
    original = _original_length(config, values, rope_type, length)
    factor = _factor(values, rope_type, length / original)
    theta = values.number("rope_theta", theta, low=1e-6)
    attention_factor = 1.0
    short_factors: list[float] = []
    long_factors: list[float] = []
    if rope_type == "yarn":
        attention_factor = _attention_factor(values, factor)
    if rope_type == "longrope":
        attention_factor = _long_attention_factor(values, factor, original)
        short_factors = values.list_of("short_factor", float)
        long_factors = values.list_of("long_factor", float)
    if rope_type == "dynamic" and values.optional_number("alpha", 0.0):
        # The base then holds the whole stretch, so angles and scores need no other one.
        theta *= _dynamic_stretch(config, values)
        rope_type, factor = "default", 1.0
    # DeepSeek-V3's key: a conversion may have moved the two numbers of a pair half a head apart.
    neighbours = config.flag("rope_interleave", True)
    return RopeSpec(
        theta=theta,
        rope_type=rope_type,
        factor=factor,
        low_freq_factor=values.number("low_freq_factor", 1.0),
        high_freq_factor=values.number("high_freq_factor", 4.0),
        original_max_position=original,
        # transformers reads a 0 or a null as the default of the paper, too.
        beta_fast=values.number("beta_fast", 32.0) or 32.0,
        beta_slow=values.number("beta_slow", 1.0) or 1.0,
        truncate=values.flag("truncate", True),
        attention_factor=attention_factor,
        interleaved=interleaved and neighbours,
        short_factors=tuple(short_factors),
        long_factors=tuple(long_factors),
        axes=_axes(values),
    )


def _axes(values: Configuration) -> tuple[int, ...]:
    """Return the axis of each pair (see `RopeSpec`): sections of pairs, or axes that alternate as long as they have any."""
    sections = values.list_of("mrope_section", int)
    if not sections:
        return ()
    if len(sections) < NUM_AXES or min(sections) < 0:
        values.fail("mrope_section", sections, f"a number of pairs for each of {NUM_AXES} axes")
    if not values.flag("mrope_interleaved", False):
        return tuple(index % NUM_AXES for index, count in enumerate(sections) for _ in range(count))
    pairs = range(sum(sections))
    return tuple(pair % NUM_AXES if pair < NUM_AXES * sections[pair % NUM_AXES] else 0 for pair in pairs)


def check_factors(rope: RopeSpec, size: int) -> None:
    """Raise UserError unless longrope has a factor for each pair of the `size` numbers that rotate."""
    if rope.rope_type != "longrope":
        return
    for name, factors in (("short_factor", rope.short_factors), ("long_factor", rope.long_factors)):
        if len(factors) != size // 2:
            raise UserError(
                f"{name} has {len(factors)} numbers in the model's configuration; expected {size // 2}, one for each pair "
                "of numbers of a head that rotate. The configuration of the checkpoint is damaged."
            )


def score_stretch(hf_config: Mapping[str, Any]) -> float:
    """Return the factor that yarn applies to the scores of latent attention: the square of its `mscale_all_dim`
    stretch.
    """
    values, _ = _rope_values(configuration(hf_config), full=True)
    if _rope_type(values) == "default":
        return 1.0
    weight = values.number("mscale_all_dim", 0.0)
    if not weight:
        return 1.0
    return _yarn_stretch(values.number("factor"), weight) ** 2


def _rope_values(config: Configuration, full: bool) -> tuple[Configuration, float]:
    """Return the parameters of a layer, and the default of its base.

    The parameters are in `rope_scaling`, or else in `rope_parameters`; flat, or by layer type. In families whose
    sliding layers have a base of their own (Gemma 3), `rope_parameters` are by layer type, and `rope_scaling` overrides
    those of the other layers.
    """
    kind = "full_attention" if full else "sliding_attention"
    theta = config.number("rope_theta", 10000.0)
    local = config.optional_number("rope_local_base_freq")
    scaling = config.mapping("rope_scaling")
    if local is not None:
        parameters = config.mapping("rope_parameters")
        wide = parameters.mapping("full_attention").overlaid(dict(scaling))
        near = parameters.mapping("sliding_attention")
        return (wide, theta) if full else (near, local)
    parameters = scaling if scaling else config.mapping("rope_parameters")
    if kind in parameters:
        parameters = parameters.mapping(kind)
    return parameters, theta


def _rope_type(values: Configuration) -> str:
    # `type` is the name of the key in configurations from before Llama 3.1.
    older = values.choice("type", TYPES, "default")
    rope_type = values.choice("rope_type", TYPES, older)
    if rope_type == "yarn" and "short_factor" in values:  # an early name of longrope in Phi 3
        return "longrope"
    return rope_type


def _original_length(config: Configuration, values: Configuration, rope_type: str, length: int) -> int:
    """Return the context length before the stretch. In Phi 3 it is also a key next to the parameters, which takes
    precedence.

    length: the configured length, used where no other is named.
    """
    inside = values.positive("original_max_position_embeddings", length)
    if rope_type != "longrope":
        return inside
    return config.positive("original_max_position_embeddings", inside)


def _dynamic_stretch(config: Configuration, values: Configuration) -> float:
    """Return the factor of the base with an `alpha` (Hunyuan); without one it follows from the length that is served."""
    alpha = values.number("alpha")
    usual = config.positive("hidden_size") // config.positive("num_attention_heads")
    size = config.positive("head_dim", usual)
    if size < 4:
        config.fail("head_dim", size, "at least 4 with rope_type 'dynamic'")
    return float(alpha ** (size / (size - 2)))


def _factor(values: Configuration, rope_type: str, stretch: float) -> float:
    """Return the factor by which the context grows.

    stretch: the configured length over the original one, which yarn uses when it has no factor.
    """
    absent = {"default": 1.0, "dynamic": 1.0, "yarn": stretch, "longrope": stretch}
    factor = values.number("factor", absent.get(rope_type), low=1e-6)
    # transformers ignores a factor next to the type `default`.
    return 1.0 if rope_type == "default" else factor


def _yarn_stretch(factor: float, weight: float) -> float:
    """Return 0.1 w ln(factor) + 1 (YaRN, arXiv 2309.00071, section 3.4), where w is `weight`; 1 where nothing is
    stretched.
    """
    if factor <= 1.0:
        return 1.0
    return 0.1 * weight * math.log(factor) + 1.0


def _attention_factor(values: Configuration, factor: float) -> float:
    """Return the factor of cos and sin: the configuration's own, the ratio of its two mscales, or 0.1 ln(factor) +
    1.
    """
    own = values.optional_number("attention_factor")
    mscale = values.optional_number("mscale")
    mscale_all_dim = values.optional_number("mscale_all_dim")
    if own is not None:
        return own
    # DeepSeek's two values are equal, so this is 1; their stretch is in the scores, see `score_stretch`.
    if mscale and mscale_all_dim:
        return _yarn_stretch(factor, mscale) / _yarn_stretch(factor, mscale_all_dim)
    return _yarn_stretch(factor, 1.0)


def _long_attention_factor(values: Configuration, factor: float, original: int) -> float:
    """Return longrope's factor of cos and sin: the configuration's own, or sqrt(1 + ln(factor) / ln(original length))
    (arXiv 2402.13753).

    Phi-3.5-MoE has separate factors for short and long sequences, which are equal in its published configuration.
    """
    own = values.optional_number("attention_factor")
    short = values.optional_number("short_mscale")
    long = values.optional_number("long_mscale")
    if short != long:
        values.fail("long_mscale", long, f"the value of short_mscale, {short}, whatever the length of a sequence")
    if short is not None:
        return short
    if own is not None:
        return own
    if factor <= 1.0:
        return 1.0
    return math.sqrt(1.0 + math.log(factor) / math.log(original))
