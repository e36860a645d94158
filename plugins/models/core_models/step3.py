"""Step 3: all queries come from one small latent, and one head of keys and values serves them all; experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from core_runtime.models.configuration import Configuration, configuration
from core_runtime.models.families.row import Family
from core_runtime.models.weight_rules import Rename, Stacked
from core_runtime.specs.decoder_spec import DecoderSpec


def usual(hf_config: Mapping[str, Any]) -> Configuration:
    """Return the configuration with the layers that have experts as a list: `moe_layers_enum`, a list or numbers with
    commas; otherwise all but the first.
    """
    config = configuration(hf_config)
    count = config.positive("num_hidden_layers")
    given = config.get("moe_layers_enum")
    layers: list[int] = list(range(1, count))
    if isinstance(given, str):
        numbers = [one.strip() for one in given.split(",") if one.strip()]
        if not all(one.isdecimal() for one in numbers):
            config.fail("moe_layers_enum", given, "numbers of layers with commas")
        layers = [int(one) for one in numbers]
    elif given is not None:
        layers = config.list_of("moe_layers_enum", int)
    if config.positive("num_attention_groups", 1) != 1:
        config.fail("num_attention_groups", config.get("num_attention_groups"), "1")
    values = {"moe_layers": layers, "num_key_value_heads": 1}
    return config.overlaid(values)


def with_latent(hf_config: Mapping[str, Any], spec: DecoderSpec) -> DecoderSpec:
    """Set the size of the latent of queries; without one in the configuration, that of a head."""
    config = configuration(hf_config)
    rank = config.positive("share_q_dim", config.positive("head_dim"))
    return msgspec.structs.replace(spec, heads=msgspec.structs.replace(spec.heads, query_rank=rank))


def _stacks(side: str) -> Stacked:
    """Return the rule for the matrices of all experts of a layer, one tensor for each of their parts."""
    return Stacked(rf"(model\.layers\.\d+\.moe)\.{side}\.weight", r"\1.experts.{expert}.{piece}.weight", (side,))


ROWS = (
    Family(
        name="step3_text",
        model_types=("step3_text",),
        architectures=("Step3TextForCausalLM",),
        wrappers=("step3_vl",),
        keys={
            "max_position_embeddings": ("max_position_embedding", "max_seq_len"),
            "num_experts": "moe_num_experts",
            "num_experts_per_tok": "moe_top_k",
            "shared_expert_intermediate_size": "share_expert_dim",
            "norm_topk_prob": "norm_expert_weight",
        },
        defaults={"head_dim": 256, "rope_theta": 500_000.0, "rms_norm_eps": 1e-5, "norm_expert_weight": False},
        neutral={"max_seq_len": "max_position_embedding, beside it, says it"},
        usual=usual,
        eps_default=1e-5,
        biases={"query": False, "key": False, "value": False, "out": False, "mlp": False},
        expert_names=("moe", "gate_proj", "up_proj", "down_proj"),
        renormalize=False,
        adjust=with_latent,
        weights=(
            Rename(r"(\.layers\.\d+)\.share_expert\.", r"\1.moe.shared_experts."),
            *(_stacks(side) for side in ("gate_proj", "up_proj", "down_proj")),
        ),
    ),
)
