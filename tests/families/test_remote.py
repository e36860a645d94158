"""Rows of checkpoints whose code transformers does not have: a llama of transformers under their names and layouts, or with
what they do differently, gives the same logits."""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from core_models import remote
from core_models.alibi import slopes
from core_runtime.models.families import decoder_spec
from tests.families.comparison import distances
from tests.families.converted import IDS, SIZES, Config, Converter, Tensors, assert_equal, joined, llama, renamed, write
from tests.families.expected import TOLERANCE
from tests.families.harness import Harness
from tests.families.oracle import randomize, reference

USUAL_VALUES: Config = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "tie_word_embeddings": False,
}


def as_internlm(config: Config, tensors: Tensors) -> None:
    """From Seed-OSS, whose output has a bias by a key of its own."""
    assert config.pop("attention_out_bias")
    config |= {"model_type": "internlm", "bias": config.pop("attention_bias")}


def as_qwen2_vl(config: Config, tensors: Tensors) -> None:
    """From Qwen2: for text alone, rotary positions are the same in all three directions."""
    config["rope_parameters"]["mrope_section"] = [2, 3, 3]


def as_internlm2(config: Config, tensors: Tensors) -> None:
    config |= {"model_type": "internlm2", "bias": config.pop("attention_bias")}
    kv_heads = config["num_key_value_heads"]

    def by_group(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        groups = [part.unflatten(0, (kv_heads, -1)) for part in (q, k, v)]
        return torch.cat(groups, dim=1).flatten(0, 1).contiguous()

    joined(tensors, "wqkv", by_group)
    renamed(
        tensors,
        ("input_layernorm", "attention_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.o_proj", "attention.wo"),
        ("self_attn", "attention"),
        ("mlp.gate_proj", "feed_forward.w1"),
        ("mlp.up_proj", "feed_forward.w3"),
        ("mlp.down_proj", "feed_forward.w2"),
        ("embed_tokens", "tok_embeddings"),
        ("lm_head", "output"),
    )


def as_exaone(config: Config, tensors: Tensors) -> None:
    config["model_type"] = "exaone"
    config.setdefault("rope_theta", 10000.0)  # the default of Llama, not of Exaone
    config["num_layers"] = config.pop("num_hidden_layers")
    config["activation_function"] = config.pop("hidden_act")
    config["layer_norm_epsilon"] = config.pop("rms_norm_eps")
    renamed(
        tensors,
        ("model.embed_tokens", "transformer.wte"),
        ("model.layers", "transformer.h"),
        ("model.norm", "transformer.ln_f"),
        ("self_attn.o_proj", "attn.attention.out_proj"),
        ("self_attn", "attn.attention"),
        ("mlp.gate_proj", "mlp.c_fc_0"),
        ("mlp.up_proj", "mlp.c_fc_1"),
        ("mlp.down_proj", "mlp.c_proj"),
        ("input_layernorm", "ln_1"),
        ("post_attention_layernorm", "ln_2"),
    )


def as_baichuan(config: Config, tensors: Tensors) -> None:
    config["model_type"] = "baichuan"
    config.pop("num_key_value_heads", None)
    joined(tensors, "W_pack", lambda q, k, v: torch.cat([q, k, v]))


def as_minicpm(config: Config, tensors: Tensors) -> None:
    """From Granite, whose scores have a scale of their own."""
    depth = config["num_hidden_layers"]
    ours = {
        "model_type": "minicpm",
        "scale_emb": config.pop("embedding_multiplier"),
        "scale_depth": config.pop("residual_multiplier") * math.sqrt(depth),
        "dim_model_base": config["hidden_size"] / config.pop("logits_scaling"),
    }
    config |= ours
    stretch = config.pop("attention_multiplier") * math.sqrt(config["hidden_size"] / config["num_attention_heads"])
    for name in tensors:
        if "q_proj" in name:
            tensors[name] *= stretch


def as_new(config: Config, tensors: Tensors) -> None:
    """From GTE, whose stretch was `ntk`."""
    del config["rope_parameters"], config["rms_norm_eps"]
    config |= {"model_type": "new", "rope_theta": 5000.0, "rope_scaling": {"type": "ntk", "factor": 8.0}}
    config |= {"pack_qkv": True, "position_embedding_type": "rope", "layer_norm_type": "layer_norm"}
    renamed(tensors, ("^", "new."))


def as_bailing(config: Config, tensors: Tensors) -> None:
    """From Aria, whose experts are stacked."""
    config |= {
        "model_type": "bailing_moe",
        "architectures": ["BailingMoeForCausalLM"],
        "num_experts": config.pop("moe_num_experts"),
        "num_experts_per_tok": config.pop("moe_topk"),
        "num_shared_experts": config.pop("moe_num_shared_experts"),
        "moe_intermediate_size": config["intermediate_size"],
        "use_bias": config.pop("mlp_bias"),
        "use_qkv_bias": config.pop("attention_bias"),
    }
    for name in [name for name in tensors if "experts.fc" in name]:
        prefix = name.partition(".fc")[0]
        for number, expert in enumerate(tensors.pop(name)):
            if "fc1" in name:
                gate, up = expert.T.chunk(2)
                tensors[f"{prefix}.{number}.gate_proj.weight"] = gate
                tensors[f"{prefix}.{number}.up_proj.weight"] = up
            else:
                tensors[f"{prefix}.{number}.down_proj.weight"] = expert.T
    renamed(tensors, (r"mlp\.router", "mlp.gate"))
    as_bailing_names(tensors)


def as_bailing_2(config: Config, tensors: Tensors) -> None:
    """From GLM 4.5, which scores by sigmoid, too."""
    config |= {
        "model_type": "bailing_moe",
        "architectures": ["BailingMoeV2ForCausalLM"],
        "num_experts": config.pop("n_routed_experts"),
        "num_shared_experts": config.pop("n_shared_experts"),
        "use_bias": False,
        "use_qkv_bias": config.pop("attention_bias"),
        "score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
    }
    renamed(tensors, ("e_score_correction_bias", "expert_bias"))
    as_bailing_names(tensors)


def as_bailing_names(tensors: Tensors) -> None:
    """The names that both versions have."""
    joined(tensors, "query_key_value", lambda q, k, v: torch.cat([q, k, v]))
    renamed(
        tensors,
        ("self_attn.o_proj", "attention.dense"),
        ("self_attn.q_norm", "attention.query_layernorm"),
        ("self_attn.k_norm", "attention.key_layernorm"),
        ("self_attn", "attention"),
        ("embed_tokens", "word_embeddings"),
    )


def as_qwen(config: Config, tensors: Tensors) -> None:
    config |= {
        "model_type": "qwen",
        "kv_channels": config["hidden_size"] // config["num_attention_heads"],
        "rotary_emb_base": 10000.0,
        "rotary_pct": 1.0,
        "layer_norm_epsilon": config.pop("rms_norm_eps"),
        "intermediate_size": 2 * config["intermediate_size"],
        "seq_length": 128,
        "no_bias": True,
        "use_dynamic_ntk": True,
        "use_logn_attn": True,
    }
    del config["num_key_value_heads"]
    joined(tensors, "c_attn", lambda q, k, v: torch.cat([q, k, v]))
    for name in [name for name in tensors if name.endswith("o_proj.bias")]:
        del tensors[name]
    renamed(
        tensors,
        ("model.embed_tokens", "transformer.wte"),
        ("model.layers", "transformer.h"),
        ("model.norm", "transformer.ln_f"),
        ("self_attn.o_proj", "attn.c_proj"),
        ("self_attn", "attn"),
        ("mlp.gate_proj", "mlp.w2"),
        ("mlp.up_proj", "mlp.w1"),
        ("mlp.down_proj", "mlp.c_proj"),
        ("input_layernorm", "ln_1"),
        ("post_attention_layernorm", "ln_2"),
    )


def as_telechat(config: Config, tensors: Tensors) -> None:
    config |= {
        "model_type": "telechat",
        "n_layer": config.pop("num_hidden_layers"),
        "n_head": config.pop("num_attention_heads"),
        "ffn_hidden_size": config.pop("intermediate_size"),
        "layer_norm_epsilon": config.pop("rms_norm_eps"),
        "seq_length": config.pop("max_position_embeddings"),
        "training_seqlen": 256,
        "logn": False,
        "embed_layernorm": False,
    }
    for name in [name for name in tensors if "k_proj.weight" in name]:
        key, value = tensors.pop(name), tensors.pop(name.replace("k_proj", "v_proj"))
        heads = [part.unflatten(0, (config["n_head"], -1)) for part in (key, value)]
        tensors[name.replace("k_proj", "key_value")] = torch.cat(heads, dim=1).flatten(0, 1)
    for name in [name for name in tensors if re.search(r"([qkv]|gate|up)_proj\.bias", name)]:
        del tensors[name]
    renamed(
        tensors,
        ("model.embed_tokens", "transformer.word_embeddings"),
        ("model.layers", "transformer.h"),
        ("model.norm", "transformer.ln_f"),
        ("self_attn.q_proj", "self_attn.query"),
        ("self_attn.o_proj", "self_attn.dense"),
        ("self_attn", "self_attention"),
    )


CONVERTED: Mapping[str, tuple[str, str, Converter]] = {
    "internlm": ("seed_oss", "plain", as_internlm),
    "internlm2": ("llama", "usual", as_internlm2),
    "exaone": ("llama", "usual", as_exaone),
    "minicpm": ("granite", "plain", as_minicpm),
    "new": ("gte", "stretched", as_new),
    "bailing_moe": ("aria_text", "plain", as_bailing),
}
"""Row → the architecture and variant of transformers that it is another form of, and how."""
BUILT = ("baichuan", "orion", "qwen", "telechat2", "teleflm")
"""Rows that a test of their own compares with a changed llama."""
ELSEWHERE = ("nemotron_nas", "solar", "plamo3", "step3_text", "step3p5", "pangu_embedded", "pangu_ultra_moe")
"""Rows that `test_published` compares."""


def test_every_row_without_a_class_in_transformers_is_compared_here():
    assert {*CONVERTED, *BUILT, *ELSEWHERE} == {family.name for family in remote.ROWS}


@pytest.mark.parametrize("name", CONVERTED)
def test_a_model_of_transformers_in_another_form_gives_the_same_logits(name, tmp_path):
    assert_converted(tmp_path, *CONVERTED[name])


def test_the_second_version_of_ling_scores_experts_by_sigmoid(tmp_path):
    assert_converted(tmp_path, "glm4_moe", "plain", as_bailing_2)


def assert_converted(tmp_path: Path, model_type: str, variant: str, convert: Converter) -> None:
    """The architecture's checkpoint in another form gives its own results."""
    expected = reference(model_type, variant)
    config = {**USUAL_VALUES, **json.loads((expected.path / "config.json").read_text())}
    tensors = load_file(expected.path / "model.safetensors")
    convert(config, tensors)
    write(tmp_path, config, tensors)
    found = distances(Harness(tmp_path), expected)
    assert max(found.values()) < TOLERANCE, found


def test_the_first_qwen_has_biases_of_queries_keys_and_values_alone(tmp_path):
    model = llama(rms_norm_eps=1e-6, attention_bias=True)
    for layer in model.model.layers:
        layer.self_attn.o_proj.bias.data.zero_()
    assert_equal(tmp_path, {**SIZES, "rms_norm_eps": 1e-6}, model, as_qwen)
    assert decoder_spec(json.loads((tmp_path / "config.json").read_text())).max_position == 128


def test_telechat_2_has_keys_and_values_head_by_head(tmp_path):
    model = llama(rms_norm_eps=1e-5, attention_bias=True, mlp_bias=True)
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        for linear in (attention.q_proj, attention.k_proj, attention.v_proj, mlp.gate_proj, mlp.up_proj):
            linear.bias.data.zero_()
    config = {name: value for name, value in SIZES.items() if name != "num_key_value_heads"}
    assert_equal(tmp_path, {**config, "rms_norm_eps": 1e-5}, model, as_telechat)


def test_teleflm_scales_embeddings_and_logits(tmp_path):
    mup = {"use_mup": True, "input_mult": 1.6, "output_mult": 3.0, "mup_scale_factor": 4.0}
    config = {**SIZES, "model_type": "TeleFLM", "rms_norm_eps": 1e-6, **mup}

    def convert(config: Config, tensors: Tensors) -> None:
        tensors["model.embed_tokens.weight"] = tensors["model.embed_tokens.weight"] / 1.6
        tensors["lm_head.weight"] = tensors["lm_head.weight"] / 0.75

    assert_equal(tmp_path, config, llama(rms_norm_eps=1e-6), convert)


def test_orion_is_a_llama_with_layer_norms(tmp_path):
    model = llama(num_key_value_heads=2)
    for layer in model.model.layers:
        layer.input_layernorm = nn.LayerNorm(48, 1e-5)
        layer.post_attention_layernorm = nn.LayerNorm(48, 1e-5)
    model.model.norm = nn.LayerNorm(48, 1e-5)
    randomize(model)
    config = {**SIZES, "num_key_value_heads": 2, "model_type": "orion", "rms_norm_eps": 1e-5}
    assert_equal(tmp_path, config, model, lambda *_: None)


def test_small_baichuans_have_one_matrix_of_queries_keys_and_values(tmp_path):
    config = {**SIZES, "rms_norm_eps": 1e-6}
    assert_equal(tmp_path, config, llama(rms_norm_eps=1e-6), as_baichuan)


def test_large_baichuans_have_slopes(tmp_path):
    model = llama(rms_norm_eps=1e-6)
    model.model.rotary_emb.inv_freq.zero_()
    config = {**SIZES, "rms_norm_eps": 1e-6, "model_max_length": 256}
    del config["max_position_embeddings"]
    positions = torch.arange(len(IDS))
    distance = positions.view(1, -1) - positions.view(-1, 1)
    bias = torch.tensor(slopes(6)).view(-1, 1, 1) * distance
    mask = bias.masked_fill(distance > 0, -math.inf).unsqueeze(0)
    assert_equal(tmp_path, config, model, as_baichuan, attention_mask=mask)


def test_the_head_of_baichuan_2_has_rows_of_length_1(tmp_path):
    model = llama(rms_norm_eps=1e-6, hidden_size=12, vocab_size=125696, num_attention_heads=2, num_key_value_heads=2)
    head = model.lm_head.weight.detach().clone()
    config = {**SIZES, "rms_norm_eps": 1e-6, "hidden_size": 12, "num_attention_heads": 2, "vocab_size": 125696}

    def convert(config: Config, tensors: Tensors) -> None:
        as_baichuan(config, tensors)
        tensors["lm_head.weight"] = 3.0 * head

    model.lm_head.weight.data = nn.functional.normalize(head)
    assert_equal(tmp_path, config, model, convert)


def test_the_older_configurations_of_qwen2_vl_have_the_keys_of_the_text_beside_the_others(tmp_path):
    expected = reference("qwen2_vl")
    whole = json.loads((expected.path / "config.json").read_text())
    text = whole.pop("text_config")
    parameters = text.pop("rope_parameters")
    scaling = {"type": "mrope", "mrope_section": parameters["mrope_section"]}
    flat = {**text, **whole, "rope_theta": parameters["rope_theta"], "rope_scaling": scaling}
    write(tmp_path, flat, load_file(expected.path / "model.safetensors"))
    found = distances(Harness(tmp_path), expected)
    assert max(found.values()) < TOLERANCE, found
