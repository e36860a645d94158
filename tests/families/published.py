"""Models of rows whose code transformers does not have and that are more than a llama under other names: models of
transformers that are changed by hand, as published code differs from them.

Owns: the models, their configurations, and how their tensors are renamed. Never does: compare. Called by: `test_published`, and
the tests in which such rows meet everything else that an engine does.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig
from transformers.modeling_outputs import CausalLMOutput
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm
from transformers.models.step3p7.configuration_step3p7 import Step3p7TextConfig
from transformers.models.step3p7.modeling_step3p7 import Step3p7TextModel

from core_kit.checkpoints import write_tokenizer
from tests.families.converted import SIZES, Config, Converter, Tensors, joined, llama, renamed, write
from tests.families.oracle import randomize

KEEPS = {"first": [1, 3], "second": [1]}
BLENDS = {"first": [2, 4], "second": [3]}
"""Of Solar: kept stream → layers."""
RANK = 20
"""Of Step 3's latent."""


@dataclass(frozen=True)
class Published:
    """One of them. config: of the checkpoint. model: its logits are the row's. convert: to the tensors of the checkpoint."""

    config: Config
    model: Any
    convert: Converter

    def save(self, path: Path, **config: Any) -> Path:
        """Write a checkpoint with a tokenizer of bytes. config: other values of the configuration."""
        path.mkdir(parents=True, exist_ok=True)
        tensors = dict(self.model.state_dict())
        values = {**self.config, **config}
        self.convert(values, tensors)
        write(path, values, tensors)
        write_tokenizer(path)
        return path


class Chosen(nn.Module):
    """Experts that a softmax over all chooses, and one for every token."""

    def __init__(self, sizes: Config, count: int, top_k: int) -> None:
        super().__init__()
        self.gate = nn.Linear(sizes["hidden_size"], count, bias=False)
        self.top_k = top_k
        one = LlamaConfig(**{**sizes, "intermediate_size": 24})
        self.experts = nn.ModuleList(LlamaMLP(one) for _ in range(count))
        self.shared = LlamaMLP(LlamaConfig(**{**sizes, "intermediate_size": 40}))

    def forward(self, hidden_states: Tensor) -> Tensor:
        shares = self.gate(hidden_states).softmax(-1)
        best, chosen = shares.topk(self.top_k, dim=-1)
        found = self.shared(hidden_states)
        for number, expert in enumerate(self.experts):
            weight = (best * (chosen == number)).sum(-1, keepdim=True)
            found = found + weight * expert(hidden_states)
        return found


def solar(**sizes: Any) -> Published:
    """Solar: layers that blend the stream with that of an earlier layer. sizes: beside the usual ones."""
    shape = {"num_hidden_layers": 5, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, **sizes}
    model = llama(**shape)
    kept: dict[str, Tensor] = {}

    def changed(index: int) -> Any:
        def before(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            stream = args[0]
            for name, layers in KEEPS.items():
                if index in layers:
                    kept[name] = stream
            for name, layers in BLENDS.items():
                if index in layers:
                    stream = 0.8 * kept[name] + (1 - 0.8) * stream
            return (stream, *args[1:])

        return before

    for index, layer in enumerate(model.model.layers):
        layer.register_forward_pre_hook(changed(index))
    config = {
        **SIZES, **shape, "model_type": "solar", "bskcn_1": KEEPS["first"], "bskcn_2": KEEPS["second"],
        "bskcn_3": BLENDS["first"], "bskcn_4": BLENDS["second"], "bskcn_tv": [0.9, 0.8], "sliding_window": 2047,
    }  # fmt: skip
    return Published(config, model, lambda *_: None)


def plamo_3(**sizes: Any) -> Published:
    """PLaMo 3: norms whose weights are stored less other numbers, and windows. sizes: beside the usual ones."""
    own: Config = {"num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-5}
    shape = {**SIZES, **own, **sizes}
    ropes = {"rope_type": "default", "rope_theta": 900.0}, {"rope_type": "default", "rope_theta": 150.0}
    model = Gemma3ForCausalLM(
        Gemma3TextConfig(
            **shape, hidden_activation="silu", query_pre_attn_scalar=16, sliding_window=7, tie_word_embeddings=False,
            layer_types=["sliding_attention", "full_attention"] * 2, attn_implementation="eager",
            rope_parameters={"full_attention": ropes[0], "sliding_attention": ropes[1]},
        )
    ).eval()  # fmt: skip
    randomize(model)

    def convert(config: Config, tensors: Tensors) -> None:
        tensors["model.embed_tokens.weight"] = tensors["model.embed_tokens.weight"] * SIZES["hidden_size"] ** 0.5
        for name in tensors:
            if name.endswith("post_attention_layernorm.weight"):
                tensors[name] = tensors[name] + 1 - 1 / 5
            if name.endswith("post_feedforward_layernorm.weight"):
                tensors[name] = tensors[name] + 1 - 1 / 5**1.5
        joined(tensors, "qkv_proj", lambda q, k, v: torch.cat([q, k, v]))
        for name in [name for name in tensors if "gate_proj" in name]:
            up = tensors.pop(name.replace("gate_proj", "up_proj"))
            tensors[name.replace("gate_proj", "gate_up_proj")] = torch.cat([tensors.pop(name), up])
        renamed(
            tensors,
            ("model.layers", "model.layers.layers"),
            ("self_attn", "mixer"),
            ("input_layernorm", "pre_mixer_norm"),
            ("post_attention_layernorm", "post_mixer_norm"),
            ("pre_feedforward_layernorm", "pre_mlp_norm"),
            ("post_feedforward_layernorm", "post_mlp_norm"),
        )

    windows = {"window_size": 7, "sliding_window_pattern": 2, "rope_theta": 900, "rope_local_theta": 150}
    return Published({**shape, **windows, "model_type": "plamo3", "tie_word_embeddings": False}, model, convert)


def step_3(**sizes: Any) -> Published:
    """Step 3: queries from a latent, and experts in the last layer. sizes: beside the usual ones."""
    shape = {**SIZES, "num_hidden_layers": 3, "head_dim": 12, "rms_norm_eps": 1e-5, **sizes}
    model = llama(**{**shape, "num_key_value_heads": 1})
    num_columns = shape["num_attention_heads"] * shape["head_dim"]
    for layer in model.model.layers:
        latent = nn.Linear(SIZES["hidden_size"], RANK, bias=False), nn.Linear(RANK, num_columns, bias=False)
        layer.self_attn.q_proj = nn.Sequential(latent[0], LlamaRMSNorm(RANK, 1e-5), latent[1])
    model.model.layers[2].mlp = Chosen(SIZES, 5, 2)
    randomize(model)

    def convert(config: Config, tensors: Tensors) -> None:
        renamed(
            tensors,
            (r"q_proj\.0", "q_proj"),
            (r"q_proj\.1", "inter_norm"),
            (r"q_proj\.2", "wq"),
            (r"mlp\.shared\.", "share_expert."),
            (r"mlp\.gate\.", "moe.gate."),
        )
        for side in ("gate_proj", "up_proj", "down_proj"):
            stack = [tensors.pop(f"model.layers.2.mlp.experts.{number}.{side}.weight") for number in range(5)]
            tensors[f"model.layers.2.moe.{side}.weight"] = torch.stack(stack)

    config = {
        **shape, "model_type": "step3_text", "num_attention_groups": 1, "share_q_dim": RANK, "moe_layers_enum": "2",
        "moe_num_experts": 5, "moe_top_k": 2, "moe_intermediate_size": 24, "share_expert_dim": 40, "rope_theta": 10000.0,
        "max_position_embedding": shape["max_position_embeddings"],
    }  # fmt: skip
    del config["num_key_value_heads"], config["max_position_embeddings"]
    return Published(config, model, convert)


class Normed(nn.Module):
    """A half of a layer whose output is normalized."""

    def __init__(self, inner: nn.Module, eps: float) -> None:
        super().__init__()
        self.inner = inner
        self.behind = LlamaRMSNorm(SIZES["hidden_size"], eps)

    def forward(self, *args: Any, **named: Any) -> Any:
        found = self.inner(*args, **named)
        return self.behind(found) if isinstance(found, Tensor) else (self.behind(found[0]), *found[1:])


def sandwiched(model: Any, eps: float) -> None:
    """Normalize the output of both halves of each layer."""
    for layer in model.model.layers:
        layer.self_attn, layer.mlp = Normed(layer.self_attn, eps), Normed(layer.mlp, eps)
    randomize(model)


def with_pangus_names(tensors: Tensors) -> None:
    """Give norms on both sides their names; a llama's second norm first, whose name another one gets."""
    renamed(tensors, ("post_attention_layernorm", "pre_mlp_layernorm"))
    renamed(
        tensors,
        (r"self_attn\.behind", "post_attention_layernorm"),
        (r"mlp\.behind", "post_mlp_layernorm"),
        (r"\.inner\.", "."),
    )


def pangu_ultra_moe(**sizes: Any) -> Published:
    """Large openPangu: a DeepSeek V3 without groups, with norms on both sides. sizes: beside the usual ones."""
    shape: Config = {**SIZES, "num_hidden_layers": 3, "rms_norm_eps": 1e-5, **sizes}
    experts = {"moe_intermediate_size": 24, "n_routed_experts": 6, "num_experts_per_tok": 2, "n_shared_experts": 1}
    usual = {"q_lora_rank": 24, "kv_lora_rank": 20, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10}
    latent = {key: shape.pop(key, size) for key, size in usual.items()}
    model = DeepseekV3ForCausalLM(
        DeepseekV3Config(
            **shape, **experts, **latent, first_k_dense_replace=1, n_group=1, topk_group=1, routed_scaling_factor=2.5,
            attn_implementation="eager",
        )
    ).eval()  # fmt: skip
    for layer in model.model.layers:
        layer.self_attn.q_a_layernorm.variance_epsilon = layer.self_attn.kv_a_layernorm.variance_epsilon = 1e-5
    sandwiched(model, 1e-5)
    for layer in model.model.layers[1:]:
        layer.mlp.inner.gate.e_score_correction_bias.zero_()

    def convert(config: Config, tensors: Tensors) -> None:
        with_pangus_names(tensors)
        for name in [name for name in tensors if name.endswith("e_score_correction_bias")]:
            del tensors[name]
        for name in [name for name in tensors if "experts.gate_up_proj" in name]:
            for number, both in enumerate(tensors.pop(name)):
                prefix = name.replace("gate_up_proj", str(number))
                tensors[f"{prefix}.gate_proj.weight"], tensors[f"{prefix}.up_proj.weight"] = both.chunk(2)
            for number, down in enumerate(tensors.pop(name.replace("gate_up_proj", "down_proj"))):
                tensors[f"{name.replace('gate_up_proj', str(number))}.down_proj.weight"] = down

    names = {"n_routed_experts": "num_routed_experts", "n_shared_experts": "num_shared_experts"}
    names |= {"q_lora_rank": "attention_q_lora_dim", "kv_lora_rank": "attention_kv_lora_dim"}
    names |= {"qk_nope_head_dim": "attention_qk_dim", "qk_rope_head_dim": "attention_qk_rope_dim"}
    own = {names.get(key, key): value for key, value in {**shape, **experts, **latent}.items()}
    own["attention_v_dim"] = own.pop("v_head_dim")
    own |= {"num_dense_layers": 1, "routed_scaling_factor": 2.5, "norm_topk_prob": True, "sandwich_norm": True}
    config = {**own, "model_type": "pangu_ultra_moe", "num_mtp_layers": 0, "rope_theta": 10000.0}
    return Published(config, model, convert)


class OfText(nn.Module):
    """The text model of Step 3.5 with a head, which transformers has beside pictures alone."""

    def __init__(self, config: Step3p7TextConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Step3p7TextModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed_tokens

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def forward(self, input_ids: Tensor, **_: Any) -> CausalLMOutput:
        states = self.model(input_ids=input_ids, use_cache=False).last_hidden_state
        return CausalLMOutput(logits=self.lm_head(states), hidden_states=(states,))


def step_35(**sizes: Any) -> Published:
    """Step 3.5, with one layer more than its configuration says, which drafts. sizes: beside the usual ones.

    Lists of the configuration have entries for that layer, too.
    """
    layers = 4
    shape = {**SIZES, "num_hidden_layers": layers, "head_dim": 8, "rms_norm_eps": 1e-5, **sizes}
    shape["num_attention_groups"] = shape.pop("num_key_value_heads") // 3
    own: Config = {
        "moe_num_experts": 6, "moe_top_k": 2, "moe_intermediate_size": 24, "share_expert_dim": 40,
        "moe_layers_enum": "2,3", "moe_router_scaling_factor": 1.7, "sliding_window": 7, "norm_expert_weight": True,
        "layer_types": ["full_attention", *["sliding_attention"] * 2, "full_attention", "sliding_attention"],
        "attention_other_setting": {
            "attention_type": "sliding_attention", "num_attention_heads": 4, "head_dim": shape["head_dim"],
            "num_attention_groups": shape["num_attention_groups"],
        },
        "rope_theta": [500.0, 90.0, 90.0, 500.0, 90.0], "partial_rotary_factors": [0.5, 1.0, 1.0, 0.5, 1.0],
        "rope_scaling": {
            "rope_type": "llama3", "factor": 2.0, "original_max_position_embeddings": 32, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        },
        "yarn_only_types": ["full_attention"], "swiglu_limits": [0.0, 0.0, 0.0, 0.3, 0.0],
        "swiglu_limits_shared": [0.0, 0.0, 0.2, 0.4, 0.0], "use_head_wise_attn_gate": True,
        "num_nextn_predict_layers": 1,
    }  # fmt: skip
    theirs = copy.deepcopy({**shape, **own, "num_hidden_layers": layers + 1, "num_nextn_predict_layers": 0})
    theirs["num_key_value_heads"] = theirs.pop("num_attention_groups")
    theirs |= {"n_routed_experts": theirs.pop("moe_num_experts"), "num_experts_per_tok": theirs.pop("moe_top_k")}
    torch.manual_seed(4)
    model = OfText(Step3p7TextConfig(**theirs, attn_implementation="eager")).eval()
    randomize(model)  # type: ignore[arg-type]

    def convert(config: Config, tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith("experts.gate_up_proj")]:
            gate, up = tensors.pop(name).chunk(2, dim=1)
            prefix = name.replace("mlp.experts.gate_up_proj", "moe")
            tensors[f"{prefix}.gate_proj.weight"], tensors[f"{prefix}.up_proj.weight"] = gate, up
        renamed(
            tensors,
            (r"mlp\.experts\.down_proj$", "moe.down_proj.weight"),
            (r"mlp\.gate\.e_score_correction_bias", "moe.router_bias"),
            (r"mlp\.gate\.", "moe.gate."),
            (r"mlp\.shared_experts\.", "share_expert."),
        )

    return Published({**shape, **own, "model_type": "step3p5"}, model, convert)


def without_layer(made: Published) -> tuple[Any, Converter]:
    """The model without its last layer, which drafts, and how its tensors are converted."""
    model = copy.deepcopy(made.model)
    count = made.config["num_hidden_layers"]
    model.model.layers = model.model.layers[:count]
    model.model.config.num_hidden_layers = count
    return model, made.convert


PUBLISHED: dict[str, Callable[..., Published]] = {"solar": solar, "plamo3": plamo_3, "step3_text": step_3}
"""Model type → the model."""
