"""Rows of checkpoints whose code transformers does not have: a llama of transformers under their names and layouts, or with
what they do differently, gives the same logits."""

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from core_models import remote
from core_models.alibi import slopes
from tests.families.comparison import distances
from tests.families.expected import TOLERANCE
from tests.families.harness import Harness
from tests.families.oracle import Reference, randomize, reference

Config = dict[str, Any]
Tensors = dict[str, Tensor]
Converter = Callable[[Config, Tensors], None]

SIZES: Config = {
    "vocab_size": 263, "hidden_size": 48, "intermediate_size": 88, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 6, "max_position_embeddings": 256,
}  # fmt: skip
USUAL_VALUES: Config = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "tie_word_embeddings": False,
}
IDS = list(range(7, 40))


def renamed(tensors: Tensors, *pairs: tuple[str, str]) -> None:
    """Replace the first pattern in each name by the second, one pair after another."""
    for name in list(tensors):
        new = name
        for pattern, to in pairs:
            new = re.sub(pattern, to, new)
        tensors[new] = tensors.pop(name)


def joined(tensors: Tensors, to: str, join: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    """One tensor of queries, keys and values for each layer."""
    for name in [name for name in tensors if "q_proj" in name]:
        parts = [tensors.pop(name.replace("q_proj", f"{part}_proj")) for part in "qkv"]
        tensors[name.replace("q_proj", to)] = join(*parts)


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


CONVERTED: Mapping[str, tuple[str, str, Converter]] = {
    "internlm": ("seed_oss", "plain", as_internlm),
    "internlm2": ("llama", "usual", as_internlm2),
    "exaone": ("llama", "usual", as_exaone),
    "minicpm": ("granite", "plain", as_minicpm),
}
"""Row → the architecture and variant of transformers that it is another form of, and how."""
BUILT = ("baichuan", "orion")
"""Rows that a test of their own compares with a changed llama."""


def test_every_row_without_a_class_in_transformers_is_compared_here():
    assert {*CONVERTED, *BUILT} == {family.name for family in remote.ROWS}


@pytest.mark.parametrize("name", CONVERTED)
def test_a_model_of_transformers_in_another_form_gives_the_same_logits(name, tmp_path):
    model_type, variant, convert = CONVERTED[name]
    expected = reference(model_type, variant)
    config = {**USUAL_VALUES, **json.loads((expected.path / "config.json").read_text())}
    tensors = load_file(expected.path / "model.safetensors")
    convert(config, tensors)
    write(tmp_path, config, tensors)
    found = distances(Harness(tmp_path), expected)
    assert max(found.values()) < TOLERANCE, found


def write(path: Path, config: Config, tensors: Tensors) -> None:
    """A checkpoint."""
    (path / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path / "model.safetensors")


def llama(**changes: Any) -> LlamaForCausalLM:
    """A tiny one with random weights."""
    torch.manual_seed(3)
    config = LlamaConfig(**{**SIZES, **changes}, attn_implementation="eager")
    model = LlamaForCausalLM(config)
    randomize(model)
    return model.eval()


def assert_equal(path: Path, config: Config, model: LlamaForCausalLM, convert: Converter, **inputs: Tensor) -> None:
    """The converted model gives the model's own logits."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([IDS]), use_cache=False, **inputs).logits
    tensors = dict(model.state_dict())
    convert(config, tensors)
    write(path, config, tensors)
    found = distances(Harness(path), Reference(path, [IDS], [logits[0]], [], [], encodes=False))
    assert max(found.values()) < TOLERANCE, found


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
