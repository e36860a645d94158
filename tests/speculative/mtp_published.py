"""Models with a layer for multi-token prediction that is not one more layer of a causal model of transformers.

Large openPangu, whose code transformers does not have; Step 3.5, which it has beside pictures alone; LongCat Flash, whose layer
that drafts is half of one of the model's.

Owns: their tensors and oracles, written from the published descriptions of the layers. Never does: compare. Called by: the
tests of such layers, alone and in the engine.
"""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LongcatFlashConfig, LongcatFlashForCausalLM
from transformers.models.longcat_flash.modeling_longcat_flash import (
    LongcatFlashMLA,
    LongcatFlashMLP,
    LongcatFlashRMSNorm,
)

from tests.families.oracle import randomize
from tests.families.published import pangu_ultra_moe, step_35, without_layer
from tests.families.test_remote import as_bailing_2
from tests.speculative.mtp_cases import LAYERS, NEXTN, Made, tensors_of
from tests.speculative.mtp_cases import made as made_case
from tests.speculative.oracles import NextToken, run_block


def pangu(folder: Path, **sizes: int) -> Made:
    """Large openPangu: layers with norms on both sides, and one more of them that drafts, named as DeepSeek V3 names it.

    sizes: values of the configuration other than the usual ones.
    """
    layers = 2
    made = pangu_ultra_moe(num_hidden_layers=layers + 1, **sizes)
    model = made.model.eval()
    rotary, block = model.model.rotary_emb, model.model.layers[layers]
    state = dict(model.state_dict())
    made.convert(made.config, state)
    target = copy.deepcopy(model)
    target.model.layers = target.model.layers[:layers]
    torch.manual_seed(1)
    oracle = NextToken(
        made.config["hidden_size"],
        made.config["rms_norm_eps"],
        lambda x: run_block(block, rotary, x),
        model.model.embed_tokens.weight.detach(),
        model.lm_head.weight.detach(),
    ).eval()
    for part in ("of_embedding", "of_hidden", "project", "last"):
        state[f"{NEXTN[part]}.weight"] = getattr(oracle, part).weight.detach()
    for name in ("embed_tokens", "shared_head.head"):
        state[f"model.layers.{layers}.{name}.weight"] = model.lm_head.weight.detach().clone()
    config = {**made.config, "num_hidden_layers": layers, "num_mtp_layers": 1}
    return Made(config, state, target, oracle)


def step(folder: Path, **sizes: int) -> Made:
    """Step 3.5: a layer with an MLP and a window, and a head of its own. sizes: see `pangu`."""
    made = step_35(**sizes)
    target, _ = without_layer(made)
    layers, window = made.config["num_hidden_layers"], made.config["sliding_window"]
    block, rotary = made.model.model.layers[layers], made.model.model.rotary_emb
    torch.manual_seed(3)
    oracle = NextToken(
        made.config["hidden_size"],
        made.config["rms_norm_eps"],
        lambda x: run_block(block, rotary, x, window, "sliding_attention"),
        made.model.model.embed_tokens.weight.detach(),
        torch.randn_like(made.model.lm_head.weight) / 8,
        offset=1.0,
    ).eval()
    state = dict(made.model.state_dict())
    made.convert(made.config, state)
    for part in ("of_embedding", "of_hidden"):
        state[f"{NEXTN[part].replace('2', str(layers))}.weight"] = oracle.published(
            getattr(oracle, part).weight.detach()
        )
    prefix = f"model.layers.{layers}"
    state[f"{prefix}.eh_proj.weight"] = oracle.project.weight.detach()
    state[f"{prefix}.transformer.shared_head.norm.weight"] = oracle.published(oracle.last.weight.detach())
    state[f"{prefix}.transformer.shared_head.output.weight"] = oracle.head
    return Made(made.config, state, target, oracle)


def ling(folder: Path, **sizes: int) -> Made:
    """Ling: the layer of GLM 4.5 with another name for its last norm. sizes: see `pangu`."""
    made = made_case("glm4_moe", folder, **sizes)
    config, state = dict(made.config), dict(made.state)
    own = f"model.layers.{LAYERS}."
    state[f"{own}final_layernorm.weight"] = state.pop(f"{own}shared_head.norm.weight")
    as_bailing_2(config, state)
    state = {name: tensor for name, tensor in state.items() if not name.startswith(f"{own}word_embeddings")}
    return Made(config, state, made.target, made.oracle)


class Half(nn.Module):
    """Half of a layer of LongCat Flash, without experts: attention and MLP behind a norm each."""

    def __init__(self, config: LongcatFlashConfig, index: int) -> None:
        super().__init__()
        self.input_layernorm = LongcatFlashRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = LongcatFlashMLA(config, index)
        self.post_attention_layernorm = LongcatFlashRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = LongcatFlashMLP(config)

    def forward(self, x: Tensor, **named: object) -> Tensor:
        mixed, _ = self.self_attn(self.input_layernorm(x), **named)
        x = x + mixed
        return x + self.mlp(self.post_attention_layernorm(x))


def longcat(folder: Path, **sizes: int) -> Made:
    """LongCat Flash: one block with an MLP, beside the model, under names of its own. sizes: see `pangu`."""
    usual: dict[str, Any] = dict(
        vocab_size=263, hidden_size=48, num_layers=2, num_attention_heads=6, ffn_hidden_size=88, q_lora_rank=24,
        kv_lora_rank=20, qk_nope_head_dim=12, qk_rope_head_dim=8, head_dim=8, v_head_dim=10, moe_topk=3,
        n_routed_experts=6, zero_expert_num=2, expert_ffn_hidden_size=40, max_position_embeddings=256,
    )  # fmt: skip
    config = LongcatFlashConfig(**{**usual, **sizes}, attn_implementation="eager")
    torch.manual_seed(2)
    target = LongcatFlashForCausalLM(config).eval()
    randomize(target)
    half = Half(config, 4).eval()
    for name, parameter in half.named_parameters():
        parameter.data.normal_(1 if "norm" in name else 0, 0.15)
    oracle = NextToken(
        config.hidden_size,
        config.rms_norm_eps,
        lambda x: run_block(half, target.model.rotary_emb, x),
        target.model.embed_tokens.weight.detach(),
        target.lm_head.weight.detach(),
    ).eval()
    state = tensors_of(target, folder)
    published = {"of_embedding": "layers.0.enorm.m", "of_hidden": "layers.0.hnorm.m", "last": "norm"}
    for part, name in {**published, "project": "layers.0.eh_proj"}.items():
        state[f"model.mtp.{name}.weight"] = getattr(oracle, part).weight.detach()
    for name, tensor in half.state_dict().items():
        state[f"model.mtp.layers.0.{name.replace('mlp.', 'transformer_layer.mlp.')}"] = tensor
    state["model.mtp.embed_tokens.weight"] = oracle.embedding.clone()
    return Made(config.to_dict(), state, target, oracle)


OTHERS: dict[str, Callable[..., Made]] = {
    "pangu_ultra_moe": pangu,
    "longcat_flash": longcat,
    "step3p5": step,
    "bailing_moe": ling,
}
"""Family → its model."""
