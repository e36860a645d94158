"""Layers for multi-token prediction of each published layout, against plain torch around transformers' own blocks."""

import copy
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import msgspec
import pytest
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
    LlamaConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3NextConfig,
)

from core.api.errors import UserError
from core.plugin.registry import PluginRegistry
from core_speculative.mtp.layout import ROWS, mtp_spec
from tests.speculative.draft_harness import DraftHarness, context_of, target_harness
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
    """

    config: PretrainedConfig
    names: dict[str, str]
    said: dict[str, Any] = field(default_factory=lambda: {"num_nextn_predict_layers": 1})
    copies: tuple[str, ...] = ()
    shares_norm: bool = False
    offset: float = 0.0
    hidden_first: bool = False


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
        {
            "of_embedding": "mtp.pre_fc_norm_embedding",
            "of_hidden": "mtp.pre_fc_norm_hidden",
            "project": "mtp.fc",
            "last": "mtp.norm",
            "block": "mtp.layers.0",
        },
        offset=1.0,
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
        lambda x: run_block(layer, rotary, x),
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
        state[name.replace(own, f"{case.names['block']}.") if name.startswith(own) else name] = tensor
    for part in ("of_embedding", "of_hidden", "last"):
        if part in case.names:
            weight = getattr(oracle, part).weight.detach()
            state[f"{case.names[part]}.weight"] = oracle.published(weight)
    state[f"{case.names['project']}.weight"] = oracle.project.weight.detach()
    for name in case.copies:
        state[f"{name}.weight"] = model.lm_head.weight.detach()
    return state


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_drafts_of_a_models_own_layer(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model = longer_model(case)
    target = target_of(model)
    oracle = oracle_of(case, model)
    state = checkpoint_of(case, model, oracle, tmp_path)
    config = {**target.config.to_dict(), **case.said}
    for kinds in ("layer_types", "mlp_layer_types", "indexer_types"):
        if config.get(kinds):
            config[kinds] = config[kinds][:LAYERS]
    draft = mtp_spec(context_of(config, config, state, has_checkpoint=False))
    whole = target_harness(config, state, draft.taps)
    found, logits = DraftHarness(whole, draft, config, state, in_target=True).drafts(TOKENS, 3, (4, 5))
    out = target(torch.tensor([TOKENS[:-1]]), output_hidden_states=True)
    expected, wanted = oracle.drafts(TOKENS, out.hidden_states[-1][0], 3)
    assert found == expected
    torch.testing.assert_close(logits, wanted, atol=5e-4, rtol=5e-4)


def test_the_names_of_other_programs_mean_the_same() -> None:
    names = [entry.name for entry in entry_points(group="core.speculative") if ".mtp." in entry.value]
    assert len(names) > 8
    registry = PluginRegistry()
    for name in names:
        assert registry.get("speculative", name).spec.name == "mtp"


def test_every_layout_has_a_case() -> None:
    served = {family for row in ROWS for family in row.families}
    assert {"deepseek_v3", "glm4_moe", "qwen3_next", "qwen2", "ernie4_5_moe"} <= served


def context(
    said: dict[str, Any], tensors: tuple[str, ...], family: type[PretrainedConfig] = Qwen2Config, *, named: bool = False
) -> Any:
    config = {**family(**SHAPE).to_dict(), **said}
    return context_of(config, config, dict.fromkeys(tensors), has_checkpoint=named)  # type: ignore[arg-type]


INPUT_PROJ = "model.mtp_layers.0.input_proj.weight"


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (context({}, (INPUT_PROJ,)), "num_nextn_predict_layers is None"),
        (
            context({"num_nextn_predict_layers": 1}, ("lm_head.weight",)),
            "no tensors of 'model.mtp_layers.0.input_proj'",
        ),
        (context({"num_nextn_predict_layers": 1}, (INPUT_PROJ,), LlamaConfig), "family 'llama' have no layer for it"),
        (context({"num_nextn_predict_layers": 1}, (INPUT_PROJ,), named=True), "leave 'model' out"),
    ],
)
def test_a_model_without_such_a_layer_is_refused_by_name(asked: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        mtp_spec(asked)


def test_the_draft_reads_what_the_target_leaves() -> None:
    """A model's own loading goes on ignoring these tensors, and the draft ignores the model's."""
    spec = mtp_spec(context({"num_nextn_predict_layers": 1}, (INPUT_PROJ,)))
    patterns = dict(spec.names)
    assert patterns["model.mtp_layers.0.input_proj.*"] == "input.joined.*"
    assert msgspec.structs.asdict(spec)["shares_embedding"] and spec.shares_head
