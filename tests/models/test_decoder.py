"""The generic decoder against transformers on tiny random weights, whole, in chunks, and with company."""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV2Config,
    DeepseekV3Config,
    Gemma3TextConfig,
    LlamaConfig,
    MixtralConfig,
    Qwen3MoeConfig,
)

from core.api.errors import UserError
from core_runtime.models.families import decoder_spec, family_for
from tests.models.harness import Harness

SMALL = {
    "vocab_size": 199, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 4, "num_attention_heads": 6,
    "num_key_value_heads": 2, "max_position_embeddings": 256,
}  # fmt: skip
LATENT = {
    **{key: value for key, value in SMALL.items() if key != "num_key_value_heads"},
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "moe_intermediate_size": 28,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "rms_norm_eps": 1e-5,
}
YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 32,
    "beta_fast": 16, "beta_slow": 2,
}  # fmt: skip
CONFIGS = {
    "llama": LlamaConfig(**SMALL),
    "llama_bias_untied": LlamaConfig(
        **SMALL, attention_bias=True, mlp_bias=True, tie_word_embeddings=False, head_dim=16
    ),
    "llama3_rope": LlamaConfig(
        **SMALL,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ),
    "gemma3": Gemma3TextConfig(
        **SMALL,
        head_dim=16,
        sliding_window=9,
        query_pre_attn_scalar=24,
        layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
    ),
    "mixtral": MixtralConfig(**SMALL, num_local_experts=5),
    "mixtral_window": MixtralConfig(**SMALL, num_local_experts=3, sliding_window=9),
    "qwen3_moe": Qwen3MoeConfig(**SMALL, moe_intermediate_size=24, num_experts=6, num_experts_per_tok=3, head_dim=16),
    "qwen3_moe_mixed": Qwen3MoeConfig(
        **SMALL,
        moe_intermediate_size=24,
        num_experts=4,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        mlp_only_layers=[1],
    ),
    "llama_yarn": LlamaConfig(**SMALL, rope_parameters=YARN),
    "deepseek_v2_dense": DeepseekV2Config(**LATENT, first_k_dense_replace=4, q_lora_rank=None),
    "deepseek_v2": DeepseekV2Config(
        **LATENT, first_k_dense_replace=1, q_lora_rank=None, n_shared_experts=2, routed_scaling_factor=1.7
    ),
    "deepseek_v2_groups": DeepseekV2Config(
        **LATENT,
        first_k_dense_replace=0,
        q_lora_rank=24,
        n_shared_experts=4,
        topk_method="group_limited_greedy",
        n_group=4,
        topk_group=2,
        attention_bias=True,
        rope_parameters={**YARN, "mscale": 0.7, "mscale_all_dim": 1.1},
    ),
    "deepseek_v3": DeepseekV3Config(
        **LATENT, first_k_dense_replace=1, q_lora_rank=24, n_shared_experts=1, n_group=4, topk_group=2
    ),
    "deepseek_v3_yarn": DeepseekV3Config(
        **LATENT,
        first_k_dense_replace=2,
        q_lora_rank=None,
        n_group=1,
        topk_group=1,
        rope_interleave=False,
        attention_bias=True,
        rope_parameters={**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
    ),
}


def checkpoint_tensors(state: dict[str, torch.Tensor], experts: tuple[str, str, str, str] | None) -> dict:
    """The tensors as checkpoints hold them: an expert at a time."""
    if experts is None:
        return state
    module, gate, up, down = experts
    found = {}
    for name, tensor in state.items():
        layer, _, tail = name.partition(".mlp.")
        if tail == "experts.gate_up_proj":
            for e, both in enumerate(tensor):
                first, second = both.chunk(2)
                found[f"{layer}.{module}.experts.{e}.{gate}.weight"] = first.contiguous()
                found[f"{layer}.{module}.experts.{e}.{up}.weight"] = second.contiguous()
        elif tail == "experts.down_proj":
            found |= {f"{layer}.{module}.experts.{e}.{down}.weight": one.contiguous() for e, one in enumerate(tensor)}
        else:
            found[f"{layer}.{module}.gate.weight" if tail == "gate.weight" else name] = tensor
    return found


def pair(name: str):
    torch.manual_seed(7)
    config = CONFIGS[name]
    reference = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
        for name, buffer in reference.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(torch.randn_like(buffer) * 0.1)
    state = checkpoint_tensors(dict(reference.state_dict()), family_for(config.to_dict()).expert_names)
    return reference, Harness(config.to_dict(), state)


def reference_logits(reference, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return reference(torch.tensor([ids])).logits[0]


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_transformers(name: str) -> None:
    reference, ours = pair(name)
    ids = torch.randint(0, 199, (40,), generator=torch.Generator().manual_seed(1)).tolist()
    logits = ours.run([(ids, 0, list(range(1, 12)))])
    torch.testing.assert_close(logits, reference_logits(reference, ids), atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["llama", "gemma3", "deepseek_v2_groups", "deepseek_v3"])
@pytest.mark.parametrize("chunk", [1, 7, 16])
def test_chunks_and_company_equal_transformers(name: str, chunk: int) -> None:
    reference, ours = pair(name)
    generator = torch.Generator().manual_seed(2)
    first = torch.randint(0, 199, (33,), generator=generator).tolist()
    second = torch.randint(0, 199, (33,), generator=generator).tolist()
    rows = []
    for start in range(0, 33, chunk):
        stop = min(start + chunk, 33)
        company = (second[start:stop], start, [20, 3, 9, 4, 11, 6, 7, 1, 2])
        both = ours.run([company, (first[start:stop], start, list(range(30, 39)))])
        rows.append(both[stop - start :])
    torch.testing.assert_close(torch.cat(rows), reference_logits(reference, first), atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_embeddings_may_come_from_elsewhere(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = pair(name)[1]
    model = ours.model
    expected = ours.run([([5, 6, 7, 8], 0, [1])])
    embedded = model.embed(torch.tensor([5, 6, 7, 8]), torch.arange(4)).clone()
    monkeypatch.setattr(
        model, "embed", lambda token_ids, positions: model.workspace.view("residual", 4).copy_(embedded)
    )
    assert torch.equal(ours.run([([0, 0, 0, 0], 0, [2])]), expected)


def test_unknown_architecture_names_the_nearest() -> None:
    with pytest.raises(UserError, match="LlamaForCausalLM"):
        family_for({"architectures": ["LlammaForCausalLM"]})


@pytest.mark.parametrize(
    ("field", "value"), [("num_attention_heads", 0), ("hidden_size", None), ("vocab_size", "many")]
)
def test_impossible_configuration_is_a_sentence(field: str, value: object) -> None:
    with pytest.raises(UserError, match=field):
        decoder_spec({**CONFIGS["llama"].to_dict(), field: value})
