"""OPT and other models that started from fairseq's code: positions from row 2 on, `fc1` and `fc2`.

Owns: rows, and the translation of their configurations' own keys. Never does: hold weights. Called by: the table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from core_models.gpt2 import ALL_BIASES
from core_runtime.models.configuration import configuration
from core_runtime.models.families.row import Family
from core_runtime.models.weight_rules import Ignored, Rename, WeightRule, modules
from core_runtime.specs.block_spec import PositionsSpec
from core_runtime.specs.decoder_spec import DecoderSpec

FAIRSEQ_MODULES = modules(
    ("self_attn.out_proj", "self_attn.o_proj"),
    ("fc1", "mlp.up_proj"),
    ("fc2", "mlp.down_proj"),
)


def _opt_weights(hf_config: Mapping[str, Any], spec: DecoderSpec) -> tuple[WeightRule, ...]:
    """Return the rules for tensor names. `final_layer_norm` names both a norm of each block and the norm before the
    head.
    """
    if spec.order == "residual_post":
        norms = ("post_attention_layernorm", "post_feedforward_layernorm")
    else:
        norms = ("input_layernorm", "post_attention_layernorm")
    return (
        Rename(r"^(model\.)?decoder\.", "model."),
        Rename(r"^model\.final_layer_norm\.", "model.norm."),
        *FAIRSEQ_MODULES,
        *modules(("self_attn_layer_norm", norms[0]), ("final_layer_norm", norms[1])),
    )


def _opt_adjust(hf_config: Mapping[str, Any], spec: DecoderSpec) -> DecoderSpec:
    config = configuration(hf_config)
    weighted = config.flag("layer_norm_elementwise_affine", True)
    norm = msgspec.structs.replace(spec.norm, weighted=weighted, bias=weighted)
    first = config.flag("do_layer_norm_before", True)
    removed = config.flag("_remove_final_layer_norm")
    size = config.positive("word_embed_proj_dim", spec.hidden_size)
    return msgspec.structs.replace(
        spec,
        norm=norm,
        order="pre" if first else "residual_post",
        final_norm=first and not removed,
        embed_size=None if size == spec.hidden_size else size,
    )


def _scaled_embedding(hf_config: Mapping[str, Any], spec: DecoderSpec) -> DecoderSpec:
    if not configuration(hf_config).flag("scale_embedding", True):
        return spec
    return msgspec.structs.replace(spec, embed_scale=math.sqrt(spec.hidden_size))


def _xglm_adjust(hf_config: Mapping[str, Any], spec: DecoderSpec) -> DecoderSpec:
    spec = _scaled_embedding(hf_config, spec)
    return msgspec.structs.replace(spec, positions=PositionsSpec(spec.max_position, offset=2, computed=True))


ROWS: tuple[Family, ...] = (
    Family(
        name="opt",
        model_types=("opt",),
        architectures=("OPTForCausalLM",),
        keys={"intermediate_size": "ffn_dim"},
        norm="layer",
        norm_bias=True,
        eps_default=1e-5,
        learned_positions=2,
        rotary=False,
        gated=False,
        biases={part: "enable_bias" for part in ALL_BIASES},
        weights=_opt_weights,
        adjust=_opt_adjust,
    ),
    Family(
        name="biogpt",
        model_types=("biogpt",),
        architectures=("BioGptForCausalLM",),
        neutral={"layer_norm_eps": "its norms take 1e-5 whatever it says"},
        norm="layer",
        norm_bias=True,
        eps_default=1e-5,
        learned_positions=2,
        rotary=False,
        gated=False,
        biases=ALL_BIASES,
        weights=(
            Rename(r"^biogpt\.layer_norm\.", "model.norm."),
            Rename(r"^biogpt\.", "model."),
            Rename(r"^output_projection\.", "lm_head."),
            *FAIRSEQ_MODULES,
            *modules(("self_attn_layer_norm", "input_layernorm"), ("final_layer_norm", "post_attention_layernorm")),
        ),
        adjust=_scaled_embedding,
    ),
    Family(
        name="xglm",
        model_types=("xglm",),
        architectures=("XGLMForCausalLM",),
        keys={"intermediate_size": "ffn_dim"},
        norm="layer",
        norm_bias=True,
        eps_default=1e-5,
        rotary=False,
        gated=False,
        biases=ALL_BIASES,
        weights=(
            Ignored(r"model\.embed_positions\.weights", "computed"),
            Rename(r"^model\.layer_norm\.", "model.norm."),
            *FAIRSEQ_MODULES,
            *modules(("self_attn_layer_norm", "input_layernorm"), ("final_layer_norm", "post_attention_layernorm")),
        ),
        adjust=_xglm_adjust,
    ),
)
