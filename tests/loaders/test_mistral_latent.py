"""Mistral's own layout of models with latent attention (Mistral Large 3) against transformers' Mistral 4."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from loaders.test_mistral_loader import NAMES, changed, params_of
from safetensors.torch import load_file, save_file
from transformers import Mistral4Config, Mistral4ForCausalLM

from core import LLM, SamplingParams
from core.api.errors import CheckpointError
from core_loaders.mistral.loader import MistralLoader
from core_loaders.safetensors.loader import SafetensorsLoader
from core_runtime.models.families import decoder_spec
from tests.tiny_models import SHAPE, write_model

LATENT_NAMES = (
    (r"model\.(layers\.\d+)\.self_attn\.q_a_proj", r"\1.attention.wq_a"),
    (r"model\.(layers\.\d+)\.self_attn\.q_a_layernorm", r"\1.attention.q_a_norm"),
    (r"model\.(layers\.\d+)\.self_attn\.q_b_proj", r"\1.attention.wq_b"),
    (r"model\.(layers\.\d+)\.self_attn\.kv_a_proj_with_mqa", r"\1.attention.wkv_a_with_mqa"),
    (r"model\.(layers\.\d+)\.self_attn\.kv_a_layernorm", r"\1.attention.kv_a_norm"),
    (r"model\.(layers\.\d+)\.self_attn\.kv_b_proj", r"\1.attention.wkv_b"),
    (r"model\.(layers\.\d+)\.mlp\.gate", r"\1.gate"),
    (r"model\.(layers\.\d+)\.mlp\.(shared_experts|experts\.\d+)\.gate_proj", r"\1.\2.w1"),
    (r"model\.(layers\.\d+)\.mlp\.(shared_experts|experts\.\d+)\.down_proj", r"\1.\2.w2"),
    (r"model\.(layers\.\d+)\.mlp\.(shared_experts|experts\.\d+)\.up_proj", r"\1.\2.w3"),
    *NAMES,
)
LARGE = {
    "q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10, "norm_eps": 1e-4,
    "llama_4_scaling": {"beta": 0.3, "original_max_position_embeddings": 8},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 8, "beta": 16.0, "alpha": 2.0, "apply_scale": False},
    "moe": {
        "num_experts": 6, "num_experts_per_tok": 2, "expert_hidden_dim": 40, "num_shared_experts": 1, "num_expert_groups": 3,
        "num_expert_groups_per_tok": 2, "first_k_dense_replace": 1, "routed_scale": 1.7, "expert_parallel": 1,
        "expert_model_parallel": 1, "route_every_n": 1,
    },
}  # fmt: skip
"""Parameters of Mistral Large 3, in other sizes."""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model with latent attention as transformers has it, and the same in two consolidated files."""
    folder = tmp_path_factory.mktemp("mistral4")
    rope = {
        "rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 8, "beta_fast": 16.0,
        "beta_slow": 2.0, "attention_factor": 1.0, "llama_4_scaling_beta": 0.3, "partial_rotary_factor": 0.4,
    }  # fmt: skip
    config = Mistral4Config(
        **{**SHAPE, "num_key_value_heads": 4}, rms_norm_eps=1e-4, q_lora_rank=24, kv_lora_rank=32, qk_nope_head_dim=12,
        qk_rope_head_dim=8, v_head_dim=10, n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=40,
        n_shared_experts=1, n_group=3, topk_group=2, first_k_dense_replace=1, routed_scaling_factor=1.7, rope_parameters=rope,
    )  # fmt: skip
    torch.manual_seed(3)
    source = write_model(folder / "hf", Mistral4ForCausalLM(config))
    parts: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        found = re.fullmatch(r"(.*\.mlp\.experts)\.(gate_up_proj|down_proj)", name)
        pieces = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}[found[2]] if found else ()
        for expert, matrix in enumerate(tensor if found else ()):
            for piece, rows in zip(pieces, matrix.chunk(len(pieces)), strict=True):
                parts[f"{found[1]}.{expert}.{piece}.weight"] = rows.contiguous()
        if not found:
            parts[name] = tensor
    renamed = {}
    for name, tensor in parts.items():
        stem = name.removesuffix(".weight")
        pattern, to = next((pattern, to) for pattern, to in LATENT_NAMES if re.fullmatch(pattern, stem))
        renamed[re.sub(pattern, to, stem) + ".weight"] = tensor
    own = folder / "own"
    own.mkdir()
    names = sorted(renamed)
    for number, some in enumerate((names[::2], names[1::2]), 1):
        save_file({name: renamed[name] for name in some}, own / f"consolidated-{number:05}-of-00002.safetensors")
    usual = params_of({**json.loads((source / "config.json").read_text()), "head_dim": 20})
    (own / "params.json").write_text(json.dumps({**usual, **LARGE}))
    shutil.copy(source / "tokenizer.json", own)
    shutil.copy(source / "tokenizer_config.json", own)
    return source, own


def test_a_model_with_latent_attention_has_the_text_of_transformers(large: tuple[Path, Path]) -> None:
    source, own = large
    ours, theirs = MistralLoader().resolve(str(own)), SafetensorsLoader().resolve(str(source))
    assert decoder_spec(ours.config) == decoder_spec(theirs.config)
    model = Mistral4ForCausalLM.from_pretrained(source, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    ids = list(range(5, 40))
    with torch.inference_mode():
        scores = model(torch.tensor([ids])).logits[0].log_softmax(-1)[:-1]
        whole = model.generate(torch.tensor([ids]), max_new_tokens=32, do_sample=False)[0].tolist()
    asked = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True, prompt_logprobs=1)
    with LLM(str(own), dtype="float32", max_model_len=96, kv_cache_memory_bytes=4 << 20, use_tqdm_on_load=False) as llm:
        (output,) = llm.generate([{"prompt_token_ids": ids}], asked, use_tqdm=False)
    found = torch.tensor([at[token].logprob for token, at in zip(ids[1:], output.prompt_logprobs[1:], strict=True)])
    wanted = scores.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    torch.testing.assert_close(found, wanted, atol=1e-4 * float(wanted.abs().max()), rtol=0)
    assert output.outputs[0].token_ids == whole[len(ids) :]


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"q_lora_rank": "absent"}, "q_lora_rank is None, expected an integer from 1"),
        ({"moe": None}, "expected moe, yarn and llama_4_scaling"),
        ({"llama_4_scaling": None}, "expected moe, yarn and llama_4_scaling"),
        ({"sliding_window": 24}, "and no sliding_window"),
        ({"yarn": {**LARGE["yarn"], "apply_scale": True}}, "yarn.apply_scale is true"),
        ({"moe": {**LARGE["moe"], "jitter": 1}}, "moe.jitter is not known"),
        ({"moe": {**LARGE["moe"], "route_every_n": 2}}, "moe.route_every_n is 2; expected 1"),
        (
            {"moe": {**LARGE["moe"], "use_load_balancing_bias": True}},
            "moe.use_load_balancing_bias is True; expected False",
        ),
        ({"moe": {**LARGE["moe"], "routed_scale": -1}}, "moe.routed_scale is -1"),
        ({"moe": {**LARGE["moe"], "num_experts": 0}}, "moe.num_experts is 0"),
    ],
)
def test_parameters_of_latent_attention_are_checked(
    params: dict[str, object], reason: str, large: tuple[Path, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(large[1], tmp_path / "model")
    with pytest.raises(CheckpointError, match=reason):
        changed(folder, **params)
