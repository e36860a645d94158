"""Models with a layer for multi-token prediction in each published layout, and that layer in plain torch.

Owns: the cases, the tensors of their checkpoints, and their oracles: transformers' own block between norms and a projection.
Never does: compare. Called by: the tests of such layers, alone and in the engine.
"""

import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    DeepseekV32Config,
    Ernie4_5_MoeConfig,
    Glm4MoeConfig,
    GlmMoeDsaConfig,
    HYV3Config,
    MellumConfig,
    MiMoV2FlashConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3NextConfig,
)

from tests.speculative.oracles import NextToken, run_block

LAYERS = 2
SHAPE = {
    "vocab_size": 160, "hidden_size": 32, "intermediate_size": 56, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": LAYERS + 1, "max_position_embeddings": 128, "tie_word_embeddings": False,
}  # fmt: skip
EXPERTS = {"moe_intermediate_size": 24, "num_experts_per_tok": 2}
LATENT = {"kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
INDEX = {"index_topk": 4, "index_n_heads": 12, "index_head_dim": 16}
LATENT_SHAPE = {**SHAPE, "num_key_value_heads": 4}
TOKENS = [7, 100, 3, 55, 2, 9, 8, 77, 40]
NEXTN = {
    "of_embedding": "model.layers.2.enorm",
    "of_hidden": "model.layers.2.hnorm",
    "project": "model.layers.2.eh_proj",
    "last": "model.layers.2.shared_head.norm",
    "block": "model.layers.2",
}


@dataclass(frozen=True)
class Case:
    """One published layout.

    config: of a model with one layer more, which is the block that drafts.
    names: of the parts of the oracle in a checkpoint.
    said: what the configuration says besides.
    copies: names under which embedding and head are there once more.
    shares_norm: the norm in front of the head is the model's last.
    window: that of the block, in a model whose rotary embeddings differ by the kind of a layer.
    """

    config: PretrainedConfig
    names: dict[str, str]
    said: dict[str, Any] = field(default_factory=lambda: {"num_nextn_predict_layers": 1})
    copies: tuple[str, ...] = ()
    shares_norm: bool = False
    window: int | None = None
    offset: float = 0.0
    hidden_first: bool = False


QWEN = {
    "of_embedding": "mtp.pre_fc_norm_embedding",
    "of_hidden": "mtp.pre_fc_norm_hidden",
    "project": "mtp.fc",
    "last": "mtp.norm",
    "block": "mtp.layers.0",
}

CASES = {
    "deepseek_v3": Case(
        DeepseekV3Config(
            **LATENT_SHAPE,
            **EXPERTS,
            **LATENT,
            n_routed_experts=4,
            n_group=2,
            topk_group=1,
            first_k_dense_replace=1,
            n_shared_experts=1,
        ),
        NEXTN,
        copies=("model.layers.2.embed_tokens", "model.layers.2.shared_head.head"),
    ),
    "deepseek_v32": Case(
        DeepseekV32Config(
            **LATENT_SHAPE,
            **EXPERTS,
            **LATENT,
            **INDEX,
            n_routed_experts=4,
            n_group=2,
            topk_group=1,
            first_k_dense_replace=1,
            n_shared_experts=1,
        ),
        NEXTN,
        copies=("model.layers.2.embed_tokens", "model.layers.2.shared_head.head"),
    ),
    "glm_moe_dsa": Case(
        GlmMoeDsaConfig(
            **LATENT_SHAPE,
            **EXPERTS,
            **LATENT,
            **INDEX,
            n_routed_experts=4,
            n_group=2,
            topk_group=1,
            first_k_dense_replace=1,
            n_shared_experts=1,
            indexer_types=["full", "shared", "full"],
        ),
        NEXTN,
    ),
    "glm4_moe": Case(
        Glm4MoeConfig(
            **SHAPE,
            **EXPERTS,
            head_dim=8,
            n_routed_experts=4,
            n_group=1,
            topk_group=1,
            first_k_dense_replace=1,
            n_shared_experts=1,
            use_qk_norm=True,
        ),
        NEXTN,
    ),
    "qwen3_next": Case(
        Qwen3NextConfig(
            **SHAPE,
            **EXPERTS,
            head_dim=8,
            num_experts=4,
            shared_expert_intermediate_size=24,
            layer_types=["full_attention"] * (LAYERS + 1),
        ),
        QWEN,
        offset=1.0,
    ),
    "mellum": Case(
        MellumConfig(
            **SHAPE,
            **EXPERTS,
            head_dim=8,
            num_experts=4,
            sliding_window=5,
            layer_types=["full_attention", "sliding_attention", "sliding_attention"],
            mlp_layer_types=["sparse"] * (LAYERS + 1),
        ),
        QWEN,
        said={"num_nextn_predict_layers": 1, "mtp_layer_types": ["sliding_attention"]},
        window=5,
    ),
    "hy_v3": Case(
        HYV3Config(**SHAPE, **EXPERTS, head_dim=8, num_local_experts=4, mlp_layer_types=["dense", "sparse", "sparse"]),
        {**NEXTN, "last": "model.layers.2.final_layernorm"},
        copies=("model.layers.2.shared_head",),
    ),
    "mimo_v2_flash": Case(
        MiMoV2FlashConfig(
            **SHAPE,
            **EXPERTS,
            head_dim=8,
            v_head_dim=6,
            n_routed_experts=4,
            sliding_window=5,
            layer_types=["full_attention", "sliding_attention", "sliding_attention"],
            mlp_layer_types=["dense", "sparse", "dense"],
        ),
        {
            "of_embedding": "model.mtp.layers.0.enorm",
            "of_hidden": "model.mtp.layers.0.hnorm",
            "project": "model.mtp.layers.0.eh_proj",
            "last": "model.mtp.layers.0.final_layernorm",
            "block": "model.mtp.layers.0",
            "post_attention_layernorm": "pre_mlp_layernorm",
        },
        said={},
        window=5,
    ),
    "mimo": Case(
        Qwen2Config(**SHAPE, architectures=["MiMoForCausalLM"]),
        {
            "of_embedding": "model.mtp_layers.0.token_layernorm",
            "of_hidden": "model.mtp_layers.0.hidden_layernorm",
            "project": "model.mtp_layers.0.input_proj",
            "last": "model.mtp_layers.0.final_layernorm",
            "block": "model.mtp_layers.0",
        },
        hidden_first=True,
    ),
    "ernie4_5_moe": Case(
        Ernie4_5_MoeConfig(
            **SHAPE,
            **{**EXPERTS, "moe_k": 2},
            moe_num_experts=4,
            moe_layer_start_index=1,
            moe_layer_end_index=LAYERS - 1,
        ),
        {
            "of_embedding": "model.mtp_emb_norm.0",
            "of_hidden": "model.mtp_hidden_norm.0",
            "project": "model.mtp_linear_proj.0",
            "block": "model.mtp_block.0",
        },
        shares_norm=True,
    ),
}


@dataclass(frozen=True)
class Made:
    """A checkpoint with a layer that drafts: its configuration and tensors, the model of transformers, and the layer in plain
    torch.
    """

    config: dict[str, Any]
    state: dict[str, Tensor]
    target: Any
    oracle: NextToken


def resized(config: PretrainedConfig, **sizes: int) -> PretrainedConfig:
    """A copy of a configuration with other values."""
    changed = copy.deepcopy(config)
    for name, value in sizes.items():
        setattr(changed, name, value)
    return changed


def tensors_of(model: Any, folder: Path) -> dict[str, Tensor]:
    """As transformers saves them."""
    model.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def longer_model(case: Case) -> Any:
    """A model whose last layer is the block that drafts."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(case.config, attn_implementation="eager").eval()
    for name, parameter in model.named_parameters():
        parameter.data.normal_(0, 0.15)
        if "norm" in name:
            parameter.data.add_(1 - case.offset)
    return model


def target_of(model: Any) -> Any:
    """The model without that layer."""
    target = copy.deepcopy(model)
    target.model.layers = target.model.layers[:LAYERS]
    target.config.num_hidden_layers = LAYERS
    return target


def oracle_of(case: Case, model: Any) -> NextToken:
    layer: nn.Module = model.model.layers[LAYERS]
    rotary = model.model.rotary_emb
    size = SHAPE["hidden_size"]
    oracle = NextToken(
        size,
        case.config.rms_norm_eps,
        lambda x: run_block(layer, rotary, x, case.window, "sliding_attention" if case.window else ""),
        model.model.embed_tokens.weight.detach(),
        model.lm_head.weight.detach(),
        offset=case.offset,
        hidden_first=case.hidden_first,
    ).eval()
    if case.shares_norm:
        oracle.last.weight.data = model.model.norm.weight.detach()
    return oracle


def checkpoint_of(case: Case, model: Any, oracle: NextToken, folder: Path) -> dict[str, Tensor]:
    """The tensors as they are published: the model's own, and those of the layer under its names."""
    state: dict[str, Tensor] = {}
    for name, tensor in tensors_of(model, folder).items():
        own = f"model.layers.{LAYERS}."
        if name.startswith(own):
            name = name.replace(own, f"{case.names['block']}.")
            for usual, published in case.names.items():
                name = name.replace(f".{usual}.", f".{published}.")
        state[name] = tensor
    for part in ("of_embedding", "of_hidden", "last"):
        if part in case.names:
            weight = getattr(oracle, part).weight.detach()
            state[f"{case.names[part]}.weight"] = oracle.published(weight)
    state[f"{case.names['project']}.weight"] = oracle.project.weight.detach()
    for name in case.copies:
        state[f"{name}.weight"] = model.lm_head.weight.detach()
    return state


def config_of(case: Case, target: Any) -> dict[str, Any]:
    """The configuration of a checkpoint. target: the model without the layer that drafts."""
    config = {**target.config.to_dict(), **case.said}
    for kinds in ("layer_types", "mlp_layer_types", "indexer_types"):
        if config.get(kinds):
            config[kinds] = config[kinds][:LAYERS]
    return config


def made(name: str, folder: Path, **sizes: int) -> Made:
    """The model of a case. folder: an empty one, to be written to. sizes: values of the configuration other than its own."""
    case = replace(CASES[name], config=resized(CASES[name].config, **sizes))
    model = longer_model(case)
    target = target_of(model)
    oracle = oracle_of(case, model)
    return Made(config_of(case, target), checkpoint_of(case, model, oracle, folder), target, oracle)
