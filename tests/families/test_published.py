"""Rows of checkpoints whose code transformers does not have, and that are more than a llama under other names: a model of
transformers that was changed by hand, as their published code differs from it, gives the same logits."""

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP

from core import LLM, SamplingParams
from core.api.errors import UserError
from core_loaders.pt.loader import PtLoader
from core_runtime.models.families import decoder_spec
from core_runtime.specs.model_part import Part
from tests.families.comparison import distances
from tests.families.converted import IDS, SIZES, assert_equal, llama, renamed
from tests.families.expected import TOLERANCE
from tests.families.harness import Harness, Piece
from tests.families.oracle import Reference, randomize
from tests.families.published import (
    pangu_ultra_moe,
    plamo_3,
    sandwiched,
    solar,
    step_3,
    step_35,
    with_pangus_names,
    without_layer,
)


def test_fairseq2_saves_a_llama_under_names_of_its_own(tmp_path):
    model = llama(num_key_value_heads=2, rms_norm_eps=1e-5)
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([IDS]), use_cache=False).logits
    tensors = dict(model.state_dict())
    for name, tensor in tensors.items():
        if "q_proj" in name or "k_proj" in name:  # from halves of a head to neighbours
            tensors[name] = tensor.unflatten(0, (-1, 2, 4)).transpose(1, 2).flatten(0, 2).contiguous()
    renamed(
        tensors,
        (r"self_attn\.o_proj", "self_attn.output_proj"),
        ("post_attention_layernorm", "ffn_layer_norm"),
        ("input_layernorm", "self_attn_layer_norm"),
        (r"mlp\.gate_proj", "ffn.gate_proj"),
        (r"mlp\.up_proj", "ffn.inner_proj"),
        (r"mlp\.down_proj", "ffn.output_proj"),
        (r"^model\.norm", "decoder.layer_norm"),
        (r"^model\.embed_tokens", "decoder_frontend.embed"),
        (r"^model\.layers", "decoder.layers"),
        ("lm_head", "final_proj"),
    )
    torch.save({"model_key": "model", "model": tensors}, tmp_path / "model.pt")
    config = {**SIZES, "model_type": "llama", "num_key_value_heads": 2, "rms_norm_eps": 1e-5}
    config["architectures"] = ["Fairseq2LlamaForCausalLM"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    expected = Reference(tmp_path, [IDS], [logits[0]], [], [], encodes=False)
    found = distances(Harness(tmp_path, loader=PtLoader()), expected)
    assert max(found.values()) < TOLERANCE, found


class Nothing(nn.Module):
    """A half of a layer that a searched model lacks."""

    def forward(self, hidden_states: Tensor, **_: Any) -> Any:
        return (torch.zeros_like(hidden_states), None)


class NoMLP(nn.Module):
    """The same of an MLP, which returns a tensor alone."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return torch.zeros_like(hidden_states)


def test_searched_layers_have_their_own_heads_and_sizes_or_lack_a_half(tmp_path):
    model = llama(num_hidden_layers=4, rms_norm_eps=1e-5, attention_bias=True)
    sizes = {**SIZES, "attention_bias": True, "attn_implementation": "eager"}
    layers = model.model.layers
    layers[0].self_attn = LlamaAttention(LlamaConfig(**{**sizes, "num_key_value_heads": 2}), 0)
    layers[0].mlp = LlamaMLP(LlamaConfig(**{**sizes, "intermediate_size": 256}))
    layers[1].self_attn, layers[1].input_layernorm = Nothing(), nn.Identity()
    layers[2].mlp, layers[2].post_attention_layernorm = NoMLP(), nn.Identity()
    layers[3].self_attn, layers[3].input_layernorm = Nothing(), nn.Identity()
    layers[3].mlp, layers[3].post_attention_layernorm = NoMLP(), nn.Identity()
    randomize(model)
    halves = [
        ({"n_heads_in_group": 3, "no_op": False}, {"ffn_mult": 5.3, "no_op": False, "sparsify": None}),
        ({"no_op": True, "n_heads_in_group": None}, {"intermediate_size": 88, "no_op": False}),
        ({"n_heads_in_group": 1}, {"no_op": True, "ffn_mult": None}),
        ({"no_op": True}, {"no_op": True}),
    ]
    config = {
        **SIZES, "model_type": "nemotron-nas", "rms_norm_eps": 1e-5, "num_hidden_layers": 4, "attention_bias": True,
        "num_key_value_heads": None, "intermediate_size": None,
        "block_configs": [{"attention": attention, "ffn": ffn} for attention, ffn in halves],
    }  # fmt: skip
    assert_equal(tmp_path, config, model, lambda *_: None)
    linear = {"attention": {"replace_with_linear": True}, "ffn": {"no_op": True}}
    config["block_configs"][1] = linear
    with pytest.raises(
        UserError, match=r"block_configs\.1\.attention\.replace_with_linear is True .*expected null or fal"
    ):
        decoder_spec(config)


def test_solar_blends_the_stream_with_that_of_an_earlier_layer(tmp_path):
    made = solar()
    assert_equal(tmp_path, made.config, made.model, made.convert)
    with pytest.raises(UserError, match="use the residual stream of earlier blocks"):
        decoder_spec(made.config).local(Part(0, 1, blocks=(2, 5)))
    with pytest.raises(UserError, match=r"bskcn_4 is \[0\] .*from the first of bskcn_2 on"):
        decoder_spec({**made.config, "bskcn_4": [0]})


def test_recorded_steps_blend_too(tmp_path):
    """Decoding steps are recorded, and replay kernels alone."""
    solar().save(tmp_path)
    model = Harness(tmp_path)
    tokens = list(IDS)
    while len(tokens) < len(IDS) + 8:
        tokens.append(int(model.logits([Piece(0, tokens, 0)])[-1].argmax()))
    greedy = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    with LLM(str(tmp_path), dtype="float32", max_model_len=64, block_size=4, use_tqdm_on_load=False) as llm:
        output = llm.generate({"prompt_token_ids": IDS}, greedy, use_tqdm=False)[0].outputs[0]
    assert list(output.token_ids) == tokens[len(IDS) :]


def test_plamo_3_has_norms_whose_weights_are_stored_less_other_numbers(tmp_path):
    made = plamo_3()
    assert_equal(tmp_path, made.config, made.model, made.convert)
    older = {key: value for key, value in made.config.items() if key != "window_size"} | {
        "sliding_window": [7, None, 7, None]
    }
    assert decoder_spec(older) == decoder_spec(made.config)


def test_step_3_computes_queries_from_a_latent(tmp_path):
    made = step_3()
    assert_equal(tmp_path, made.config, made.model, made.convert)
    with pytest.raises(UserError, match="its queries share a latent"):
        decoder_spec(made.config).local(Part(0, 2))


def test_openpangu_has_biases_and_norms_on_both_sides(tmp_path):
    model = llama(num_key_value_heads=2, rms_norm_eps=1e-5, attention_bias=True)
    sandwiched(model, 1e-5)
    config = {
        **SIZES, "model_type": "PanguEmbedded", "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "bias": True,
        "sandwich_norm": True,
    }  # fmt: skip
    assert_equal(tmp_path, config, model, lambda _, tensors: with_pangus_names(tensors))
    spec = decoder_spec({**config, "qkv_bias": False, "sandwich_norm": False})
    assert (spec.heads.query_bias, spec.heads.out_bias, spec.order) == (False, True, "pre")


def test_large_openpangus_have_latents_and_experts_without_groups(tmp_path):
    made = pangu_ultra_moe()
    assert_equal(tmp_path, made.config, made.model, made.convert)


def test_step_35_has_heads_by_kind_gates_and_limits(tmp_path):
    made = step_35()
    model, convert = without_layer(made)
    assert_equal(tmp_path, made.config, model, convert)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"moe_layers_enum": "2,three"}, "moe_layers_enum is '2,three'.*numbers of layers with commas"),
        ({"rope_theta": [500.0, 90.0, 91.0, 500.0]}, "equal numbers for all layers of a kind"),
        ({"rope_theta": [500.0, 90.0]}, "a number for each of 4 layers"),
        ({"swiglu_limits": [0.0, 7.0]}, "swiglu_limits is .*a number from 0 for each layer"),
        ({"swiglu_limits": [0.0, 7.0, -1.0, 0.0]}, "swiglu_limits is .*a number from 0 for each layer"),
        ({"attention_other_setting": {"num_attention_heads": 5}}, "a multiple of 2"),
        ({"attention_other_setting": {"num_attention_heads": 4, "head_dim": 16}}, "expected 8, as in other layers"),
        ({"use_head_wise_attn_gate": False}, "use_head_wise_attn_gate"),
        ({"moe_router_activation": "softmax"}, "moe_router_activation"),
    ],
)
def test_what_step_35_cannot_be_is_refused_by_name(changed, sentence):
    with pytest.raises(UserError, match=sentence):
        decoder_spec({**step_35().config, **changed})
