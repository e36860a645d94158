"""A model in 2, 4 and 8 parts, whose partial sums are added as a tree, has the bits of the whole."""

from functools import cache

import msgspec
import pytest
import torch
from transformers import (
    BloomConfig,
    CohereConfig,
    DeepseekV3Config,
    FalconH1Config,
    Gemma3TextConfig,
    GptOssConfig,
    Lfm2Config,
    LlamaConfig,
    Mamba2Config,
    OPTConfig,
    Qwen2MoeConfig,
    Qwen3_5TextConfig,
    Qwen3MoeConfig,
    Qwen3NextConfig,
)

from core.api.errors import UserError
from core.api.specs import LayerSpec, PartPlan
from core_runtime.contracts import LinearKernel
from core_runtime.models.families import decoder_spec
from core_runtime.models.mlp import ExpertsMLP
from core_runtime.specs.expert_placement import ExpertPlacement
from core_runtime.specs.model_part import Part
from tests.models.harness import Harness
from tests.models.part_models import SEQUENCES, Packed, checkpoint, divided, logits, parts_of, settings

SHAPE = {
    "vocab_size": 200, "hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 256,
}  # fmt: skip
EXPERTS = {"moe_intermediate_size": 64, "num_experts": 32, "num_experts_per_tok": 9}
LATENT = {
    **{key: value for key, value in SHAPE.items() if key not in ("num_key_value_heads", "head_dim")},
    "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 32, "moe_intermediate_size": 256,
    "n_routed_experts": 8, "num_experts_per_tok": 3, "first_k_dense_replace": 1, "n_shared_experts": 1, "n_group": 4,
    "topk_group": 2,
}  # fmt: skip
CONFIGS = {
    "dense": LlamaConfig(**SHAPE, tie_word_embeddings=True),
    "biased": LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True),
    "window": Gemma3TextConfig(
        **SHAPE, sliding_window=9, query_pre_attn_scalar=24, layer_types=["sliding_attention", "full_attention"]
    ),
    "experts": Qwen3MoeConfig(**SHAPE, **EXPERTS, mlp_only_layers=[1]),
    "gated shared expert": Qwen2MoeConfig(**SHAPE, **EXPERTS, shared_expert_intermediate_size=256),
    "latent": DeepseekV3Config(**LATENT, q_lora_rank=None, attention_bias=True),
    "latent queries": DeepseekV3Config(**LATENT, q_lora_rank=64),
    "sinks": GptOssConfig(
        **SHAPE, num_local_experts=8, num_experts_per_tok=3, layer_types=["sliding_attention", "full_attention"],
        sliding_window=9,
    ),
    "slopes": BloomConfig(vocab_size=200, hidden_size=256, n_layer=2, n_head=8),
    "a norm of each head": CohereConfig(**SHAPE, use_qk_norm=True),
    "projected embeddings": OPTConfig(
        vocab_size=200, hidden_size=256, word_embed_proj_dim=64, ffn_dim=256, num_hidden_layers=2, num_attention_heads=8,
        max_position_embeddings=256, do_layer_norm_before=True,
    ),
    "gated delta": Qwen3NextConfig(
        **SHAPE, **EXPERTS, shared_expert_intermediate_size=256, full_attention_interval=2, linear_num_key_heads=4,
        linear_num_value_heads=8, linear_key_head_dim=16, linear_value_head_dim=32,
    ),
    "separate delta": Qwen3_5TextConfig(
        **SHAPE, layer_types=["linear_attention", "full_attention"], linear_num_key_heads=2, linear_num_value_heads=8,
        linear_key_head_dim=16, linear_value_head_dim=32,
    ),
    "mamba 2": Mamba2Config(
        vocab_size=200, hidden_size=128, num_hidden_layers=2, expand=2, num_heads=8, head_dim=32, n_groups=8, state_size=16,
    ),
    "two mixers": FalconH1Config(
        **SHAPE, mamba_d_ssm=256, mamba_n_heads=8, mamba_d_head=32, mamba_n_groups=1, mamba_d_state=16, mamba_rms_norm=False,
        ssm_out_multiplier=0.3, attention_out_multiplier=0.7,
    ),
    "short convolution": Lfm2Config(
        **{key: value for key, value in SHAPE.items() if key != "head_dim"} | {"hidden_size": 256},
        block_auto_adjust_ff_dim=False, layer_types=["conv", "full_attention"],
    ),
    "an odd vocabulary": LlamaConfig(**{**SHAPE, "vocab_size": 197}),
}  # fmt: skip
FORMS = {
    "float32": None,
    "bfloat16": None,
    "int8": Packed(8),
    "int4": Packed(4),
    "int4 super": Packed(4, in_super_groups=True),
}


@cache
def whole(name: str, kernels: str, form: str) -> torch.Tensor:
    return Harness(*checkpoint(CONFIGS[name]), **arguments(kernels, form)).run(SEQUENCES)


def arguments(kernels: str, form: str) -> dict:
    dtype = form if FORMS[form] is None else "float32"
    return {**settings(kernels), "dtype": dtype, "method": FORMS[form]}


@pytest.mark.parametrize(
    ("kernels", "form"), [*(("native", form) for form in FORMS), ("torch", "float32"), ("torch", "int4")]
)
@pytest.mark.parametrize("name", CONFIGS)
def test_parts_have_the_bits_of_the_whole(name: str, kernels: str, form: str) -> None:
    for size in (2, 4, 8) if kernels == "native" else (8,):  # torch's compute row by row, which takes long
        found = divided(*checkpoint(CONFIGS[name]), size, **arguments(kernels, form))
        assert torch.equal(found, whole(name, kernels, form)), f"{size} parts"


PLACEMENTS = {
    "every other one": ExpertPlacement("round_robin"),
    "some twice": ExpertPlacement(redundant=4),
    "some twice, every other one": ExpertPlacement("round_robin", redundant=8),
}


@pytest.mark.parametrize(("kernels", "form"), [("native", "bfloat16"), ("native", "int4"), ("torch", "float32")])
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("name", ["experts", "gated shared expert", "latent", "sinks"])
def test_bits_do_not_depend_on_where_experts_lie(name: str, placement: str, kernels: str, form: str) -> None:
    settings = arguments(kernels, form) | {"experts": PLACEMENTS[placement]}
    for size in (2, 4) if kernels == "native" else (2,):
        found = divided(*checkpoint(CONFIGS[name]), size, **settings)
        assert torch.equal(found, whole(name, kernels, form)), f"{size} parts"


@pytest.mark.parametrize("form", ["bfloat16", "int4"])
def test_bits_stay_when_experts_change_places(form: str) -> None:
    settings = arguments("native", form) | {"experts": ExpertPlacement(redundant=2, moves=True)}
    parts = parts_of(*checkpoint(CONFIGS["latent"]), 2, **settings)
    # Of 5 slots a rank, slots 1 and 6 change places, and slot 9 gets a copy of another expert.
    for rank, slot, expert in ((0, 1, 6), (1, 1, 1), (1, 4, 4)):
        for index, block in enumerate(parts[rank].weights.blocks):
            if isinstance(block.mlp, ExpertsMLP):
                block.mlp.experts.replace(slot, *one_expert(parts[rank], index, expert))
    for part in parts:
        for block in part.weights.blocks:
            if isinstance(block.mlp, ExpertsMLP):
                block.mlp.places.put((0, 6, 2, 3, 4, 5, 1, 7, 0, 4))
    assert torch.equal(logits(parts), whole("latent", "native", form))
    loads = [
        block.mlp.places.loads for part in parts for block in part.weights.blocks if isinstance(block.mlp, ExpertsMLP)
    ]
    assert torch.equal(loads[0], loads[1]) and int(loads[0].sum()) == 3 * sum(len(ids) for ids, _, _ in SEQUENCES)


def one_expert(part: Harness, index: int, expert: int) -> list[LinearKernel]:
    """The kernels of an expert that may be another rank's."""
    spec = decoder_spec(CONFIGS["latent"].to_dict())
    linears = spec.expert_linears(index)[expert]
    _, state = checkpoint(CONFIGS["latent"])
    return [part.packing.linear(side, state).single for side in (linears.gate_up, linears.down)]


def test_experts_that_ranks_cannot_share_are_refused() -> None:
    spec = decoder_spec(CONFIGS["sinks"].to_dict())
    for placement, words in (
        (ExpertPlacement(redundant=1), "9 experts cannot be divided into 2 equal parts"),
        (ExpertPlacement(redundant=10), "10 redundant experts: 2 ranks can use 8 at most"),
    ):
        with pytest.raises(UserError, match=words):
            spec.local(Part(0, 2, experts=placement))


class ByRow(Packed):
    """Inputs are rounded with one scale for those that a rank holds."""

    def plan(self, part: LayerSpec) -> PartPlan:
        return msgspec.structs.replace(super().plan(part), activation="int8_row")


@pytest.mark.parametrize(
    ("size", "more", "named"),
    [
        (1, {"kernels": []}, ""),
        (2, settings("native"), ""),
        (8, settings("torch"), ""),
        (3, settings("native"), "parts-3"),
        (2, {"kernels": []}, "parts-2"),
        (4, settings("native") | {"method": ByRow(8)}, "parts-4"),
    ],
)
def test_numerics_name_the_number_of_ranks_where_bits_depend_on_it(size: int, more: dict, named: str) -> None:
    wide = {**SHAPE, "hidden_size": 96, "num_attention_heads": 24, "num_key_value_heads": 24, "intermediate_size": 768}
    hf_config, state = checkpoint(LlamaConfig(**wide))
    part = Harness(hf_config, state, part=Part(0, size), reduce=lambda tensor: None, **more)
    assert part.packing.numerics == named
