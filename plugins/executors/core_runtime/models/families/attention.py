"""The mixer of a layer, from a configuration. Torch-free.

Owns: the keys about attention and its surroundings. Never does: know a family by name. Called by: `build`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from core.api.errors import UserError
from core.api.specs import AttentionSpec, LatentSpec
from core_runtime.models.configuration import Configuration, configuration, positive
from core_runtime.models.families.row import Family, HeadNorm
from core_runtime.models.families.scalars import has_bias, scalar
from core_runtime.models.rope import check_factors, rope_spec, score_stretch
from core_runtime.specs.block_spec import HeadNormSpec, HeadsSpec, NormSpec, TemperatureSpec
from core_runtime.specs.rope_spec import RopeSpec


def attention_of(family: Family, hf_config: Mapping[str, Any], index: int) -> AttentionSpec:
    """Return the spec of attention over keys and values."""
    num_heads = positive(hf_config, "num_attention_heads")
    num_kv_heads = positive(hf_config, "num_key_value_heads", num_heads)
    head_size = head_size_of(hf_config)
    if num_heads % num_kv_heads:
        raise UserError(
            f"num_attention_heads is {num_heads}, not a multiple of num_key_value_heads ({num_kv_heads}); "
            "the configuration of the checkpoint is damaged."
        )
    return AttentionSpec(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        head_size_v=head_size,
        scale=_scale(family, hf_config, head_size),
        window=_window(family, hf_config, index),
        cap=configuration(hf_config).optional_number("attn_logit_softcapping", 1e-6),
        sinks=family.sinks,
        chunked=is_chunked(hf_config, index),
        causal=not family.encoder,
    )


def latent_of(hf_config: Mapping[str, Any]) -> LatentSpec:
    """Return the spec of latent attention (MLA)."""
    rope_size = positive(hf_config, "qk_rope_head_dim")
    nope_size = positive(hf_config, "qk_nope_head_dim")
    usual_size = positive(hf_config, "hidden_size") // positive(hf_config, "num_attention_heads")
    if rope_size % 2:
        raise UserError(f"qk_rope_head_dim is {rope_size}; rotary embeddings need an even size.")
    q_rank = None
    # DeepSeek-V2-Lite has an explicit null: its queries have no latent.
    if hf_config.get("q_lora_rank") is not None:
        q_rank = positive(hf_config, "q_lora_rank")
    return LatentSpec(
        num_heads=positive(hf_config, "num_attention_heads"),
        rank=positive(hf_config, "kv_lora_rank"),
        rope_size=rope_size,
        head_size_nope=nope_size,
        head_size_v=positive(hf_config, "v_head_dim", usual_size),
        scale=score_stretch(hf_config) / math.sqrt(nope_size + rope_size),
        q_rank=q_rank,
    )


def head_size_of(hf_config: Mapping[str, Any]) -> int:
    """Return the size of a head."""
    usual_size = positive(hf_config, "hidden_size") // positive(hf_config, "num_attention_heads")
    return positive(hf_config, "head_dim", usual_size)


def heads_of(family: Family, hf_config: Mapping[str, Any], norm: NormSpec) -> HeadsSpec:
    """Return the spec of norms and biases around attention. norm: spec of the family's other norms."""
    usual = bool(hf_config.get("attention_bias", family.qkv_bias))
    biases = {}
    for part in ("query", "key", "value"):
        biases[f"{part}_bias"] = has_bias(family, hf_config, part, usual)
    # The family's usual bias is not the output's: Qwen2 has one for queries, keys and values alone.
    out_bias = has_bias(family, hf_config, "out", bool(hf_config.get("attention_bias", False)))
    head_norm = _head_norm(family, hf_config, norm)
    clip = configuration(hf_config).optional_number(family.clip, 1e-6) if family.clip else None
    return msgspec.structs.replace(
        family.heads,
        norm=head_norm,
        out_norm=norm if family.inner_norms else None,
        out_bias=out_bias,
        clip=family.heads.clip if clip is None else clip,
        temperature=_temperature(family, hf_config) if family.temperature else family.heads.temperature,
        **biases,
    )


def rope_of(family: Family, hf_config: Mapping[str, Any], index: int) -> RopeSpec | None:
    """Return the rotary embedding of a layer, None without one."""
    if not family.rotary or _is_unrotated(family, hf_config, index):
        return None
    full = is_full(family, hf_config, index)
    # DeepSeek's checkpoints hold the pairs of latent attention as neighbours, without a key that says so.
    rope = rope_spec(hf_config, full, interleaved=family.latent or family.interleaved)
    if family.latent:
        check_factors(rope, positive(hf_config, "qk_rope_head_dim"))
        return rope
    size = _rotary_size(hf_config, full)
    if size is not None:
        rope = msgspec.structs.replace(rope, size=size)
    elif head_size_of(hf_config) % 2:
        raise UserError(f"head_dim is {head_size_of(hf_config)}; rotary embeddings need an even head size.")
    check_factors(rope, size or head_size_of(hf_config))
    return rope


def is_full(family: Family, hf_config: Mapping[str, Any], index: int) -> bool:
    """Whether a layer sees all keys before it."""
    config = configuration(hf_config)
    kinds = config.list_of("layer_types", str)
    first = config.get("max_window_layers")
    # `layer_types` is what transformers writes now; the others are the keys of older configurations of the same families.
    if kinds:
        return _kind(config, kinds, index) not in ("sliding_attention", "chunked_attention")
    if first is not None:
        return index < config.count("max_window_layers")
    pattern = config.count("sliding_window_pattern", 0) or family.full_every
    # Most families count layers from one here: with a pattern of 6, the first full one of Gemma 3 is layer 5.
    number = index if family.first_full else index + 1
    return not pattern or number % pattern == 0


def is_chunked(hf_config: Mapping[str, Any], index: int) -> bool:
    """Whether a layer's windows are chunks that do not overlap."""
    config = configuration(hf_config)
    kinds = config.list_of("layer_types", str)
    return bool(kinds) and _kind(config, kinds, index) == "chunked_attention"


def _kind(config: Configuration, kinds: list[str], index: int) -> str:
    num_layers = config.positive("num_hidden_layers")
    if len(kinds) < num_layers:
        config.fail("layer_types", kinds, f"a kind for each of {num_layers} layers, not {len(kinds)}")
    return kinds[index]


def _rotary_size(hf_config: Mapping[str, Any], full: bool) -> int | None:
    """Return how many numbers of a head rotate; None: all of them."""
    head_size = head_size_of(hf_config)
    share = hf_config.get("partial_rotary_factor")
    parameters = hf_config.get("rope_parameters")
    if isinstance(parameters, Mapping):
        of_kind = parameters.get("full_attention" if full else "sliding_attention")
        own = of_kind if isinstance(of_kind, Mapping) else parameters
        share = own.get("partial_rotary_factor", share)
    size = hf_config.get("rotary_dim")
    if size is None and share is not None:
        size = int(head_size * share)
    if size is None or size == head_size:
        return None
    if not isinstance(size, int) or not 0 < size <= head_size or size % 2:
        raise UserError(
            f"{size!r} numbers of a head rotate (partial_rotary_factor, rotary_dim); expected an even number up to the "
            f"head's {head_size}."
        )
    return size


def _is_unrotated(family: Family, hf_config: Mapping[str, Any], index: int) -> bool:
    """Whether this layer has no rotary embedding in a family that has one."""
    parameters = configuration(hf_config).get("rope_parameters")
    kind = "full_attention" if is_full(family, hf_config, index) else "sliding_attention"
    # Only an explicit null: a kind that is missing has the usual embedding.
    if isinstance(parameters, Mapping) and parameters.get(kind, "") is None:
        return True
    if family.unrotated == "list":
        config = configuration(hf_config)
        listed = config.list_of("no_rope_layers", int)
        interval = config.count("no_rope_layer_interval", 0)
        num_layers = config.positive("num_hidden_layers")
        if listed and len(listed) < num_layers:
            config.fail("no_rope_layers", listed, f"a number for each of {num_layers} layers, not {len(listed)}")
        if listed:
            # Despite its name, the list has a 1 for layers that rotate (Llama 4, SmolLM3).
            return not listed[index]
        return interval > 0 and (index + 1) % interval == 0
    if family.unrotated == "full":
        # In a model of such a family without windows, all layers rotate.
        return hf_config.get("sliding_window") is not None and is_full(family, hf_config, index)
    return False


def _head_norm(family: Family, hf_config: Mapping[str, Any], norm: NormSpec) -> HeadNormSpec | None:
    row = family.qk_norm
    if row is False:
        return None
    if row is True:
        row = HeadNorm()
    if row.key and not hf_config.get(row.key):
        return None
    how = NormSpec(
        kind=row.kind or norm.kind,
        eps=norm.eps if row.eps is None else row.eps,
        # The offset belongs to the stored weight (Gemma stores it less one); without a weight there is none.
        offset=norm.offset if row.weighted else 0.0,
        weighted=row.weighted,
        bias=row.bias,
    )
    return HeadNormSpec(norm=how, over=row.over, after_rope=row.after_rope)


def _temperature(family: Family, hf_config: Mapping[str, Any]) -> TemperatureSpec | None:
    config = configuration(hf_config)
    rope = config.mapping("rope_scaling") or config.mapping("rope_parameters")
    growth = rope.optional_number(family.temperature)
    if growth is None:
        return None
    original = rope.positive("original_max_position_embeddings", config.positive("max_position_embeddings"))
    return TemperatureSpec(growth, original)


def _scale(family: Family, hf_config: Mapping[str, Any], head_size: int) -> float:
    own = family.scalars.get("attention")
    if own is not None and hf_config.get(own) is not None:
        return scalar(family, hf_config, "attention")
    # Gemma 2 27B scales its queries by 144, although its heads have 128 numbers.
    size = configuration(hf_config).number("query_pre_attn_scalar", head_size, low=1e-6)
    return 1.0 / math.sqrt(size)


def _window(family: Family, hf_config: Mapping[str, Any], index: int) -> int | None:
    config = configuration(hf_config)
    key = "attention_chunk_size" if is_chunked(hf_config, index) else "sliding_window"
    given = config.get(key)
    # Qwen2's configurations give a window together with a flag that it is not used.
    has_windows = not family.windowed or config.flag(family.windowed)
    if given is None or not has_windows:
        return None
    window = config.positive(key)
    if is_full(family, config, index):
        return None
    return window
